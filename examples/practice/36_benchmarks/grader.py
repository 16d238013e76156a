"""Six reports of benchmarks, and the mistake of each. The reports are those of the task."""

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from answers import read_choices
from grading import NotYet

THINK = "What do the samples say, and what do the bytes, divided by the time?"
PEAK, CACHE = 4800, 50e6  # GB/s, bytes
SIZES = {"float32": 4, "bfloat16": 2}
LINE = re.compile(r"^(torch|ours) +(\w+) +n = (\d+) +samples +([\d. ]+?) +reported ([\d.]+)$", re.MULTILINE)


@dataclass
class Row:
    """A contestant's line of a report; times in microseconds."""

    who: str
    dtype: str
    n: int
    samples: list[float]
    reported: float

    @property
    def bytes(self) -> int:
        return 2 * self.n * SIZES[self.dtype]

    @property
    def speed(self) -> float:
        """GB/s by the reported time."""
        return self.bytes / self.reported * 1e-3


def reports() -> dict[str, list[Row]]:
    parts = re.split(r"^report (\w)$", Path(__file__).with_name("task.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        rows = LINE.findall(text)
        found[name] = [
            Row(who, dtype, int(n), [float(us) for us in samples.split()], float(reported))
            for who, dtype, n, samples, reported in rows
        ]
    return found


def is_reported(row: Row, how) -> bool:
    return abs(how(row.samples) - row.reported) <= 0.01 * row.reported


def no_sync(rows: list[Row]) -> tuple[bool, str]:
    row = max(rows, key=lambda row: row.speed)
    text = f"{row.who} claims {row.speed:,.0f} GB/s for {row.bytes / 1e6:,.0f} MB"
    if row.speed <= PEAK:
        return False, f"{text}, and the memory can do that. A clock that stops too early shows more"
    return row.bytes > CACHE, f"{text}: more than the memory can do, but they fit into the cache of 50 MB"


def warm_cache(rows: list[Row]) -> tuple[bool, str]:
    row = max(rows, key=lambda row: row.speed)
    text = f"{row.who} moves {row.bytes / 1e6:,.0f} MB"
    if row.bytes > CACHE:
        return False, f"{text}, which does not fit into the cache of 50 MB"
    return row.speed > PEAK, f"{text} at {row.speed:,.0f} GB/s, which the memory can do, too"


def first_call(rows: list[Row]) -> tuple[bool, str]:
    slow = [row for row in rows if row.samples[0] > 5 * median(row.samples) and is_reported(row, mean)]
    return bool(slow), "no first sample differs much from the others, so the mean would not change much without it"


def other_work(rows: list[Row]) -> tuple[bool, str]:
    count = {row.bytes for row in rows}
    return len(count) > 1, f"the number of bytes does not differ: {max(count) / 1e6:,.0f} MB for each contestant"


def best_of(rows: list[Row]) -> tuple[bool, str]:
    ways = [(is_reported(row, min), is_reported(row, mean)) for row in rows]
    is_mixed = (True, False) in ways and (False, True) in ways
    return is_mixed, "the smallest sample of a contestant and its mean are almost the same, or both are reported alike"


def in_a_row(rows: list[Row]) -> tuple[bool, str]:
    of_torch = [median(row.samples) for row in rows if row.who == "torch"]
    has_changed = max(of_torch) > 1.05 * min(of_torch)
    return has_changed, "only a contestant that is measured twice, before and after, would show that the clock fell"


MISTAKES = {
    "no-sync": no_sync,
    "first-call": first_call,
    "warm-cache": warm_cache,
    "other-work": other_work,
    "best-of": best_of,
    "in-a-row": in_a_row,
}


def grade(answer):
    found = reports()
    chosen = read_choices(answer, found)
    for name, choice in chosen.items():
        if choice not in MISTAKES:
            raise NotYet("format", f"{name} = {choice}: this is not one of {', '.join(MISTAKES)}.", think=THINK)
    if len(set(chosen.values())) < len(chosen):
        raise NotYet("format", "The reports make different mistakes: use each of them once.", think=THINK)
    for name, choice in chosen.items():
        is_right, why_not = MISTAKES[choice](found[name])
        if not is_right:
            raise NotYet("choice", f"Report {name} does not show {choice}: {why_not}.", think=THINK)
    return ["all six mistakes are found"]
