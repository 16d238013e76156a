"""Questions about two records of Nsight Compute; the answers are computed from them."""

import json
from pathlib import Path

from answers import is_number, read_choices
from grading import NotYet

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
PARTS = {"memory": "dram_percent", "l2": "l2_percent", "l1": "l1_percent"}
FULL = 60  # percent
QUESTIONS = ["worst_store", "sectors_each", "sectors_needed", "worst_shared", "turns_each"]
QUESTIONS += ["limit_2", "limit_3", "limit_4", "megabytes_4"]


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def kernels():
    rows = [row for row in read("h200-transpose-ncu")["results"] if row["dtype"] == "bfloat16"]
    return dict(zip("abcd", rows, strict=False))


def versions():
    return {row["rung"]: row for row in read("h200-profile")["results"]}


def tables() -> list[str]:
    """The rows of the task's two tables."""
    counts = ("stores", "sectors_stored", "shared_reads", "shared_turns")
    first = [f"| {name} | {' | '.join(f'{row[count]:,}' for count in counts)} |" for name, row in kernels().items()]
    second = [
        f"| {name} | {row['launch_us_ncu']} | {' | '.join(f'{row[part]}%' for part in PARTS.values())} |"
        for name, row in versions().items()
    ]
    return first + second


def require(condition, what, think="The task's table says what each answer means."):
    if not condition:
        raise NotYet("choice", what, think=think)


def require_one_of(name, answer, allowed):
    require(answer in allowed, f"{name} = {answer}: this is not one of {', '.join(allowed)}.")


def check_counts(given):
    known = kernels()
    for name, above, below in (
        ("worst_store", "sectors_stored", "stores"),
        ("worst_shared", "shared_turns", "shared_reads"),
    ):
        require_one_of(name, given[name], known)
        rates = {each: row[above] / row[below] if row[below] else 0 for each, row in known.items()}
        worst, chosen = max(rates, key=rates.get), given[name]
        what = f"{name}: each request of kernel {chosen} takes {rates[chosen]:.1f}, and another kernel has more."
        require(chosen == worst, what, "Divide the sectors, or the turns, by the requests.")
        answer = "sectors_each" if below == "stores" else "turns_each"
        what = f"{answer} = {given[answer]}: {known[worst][above]:,} are the sum, and the question is how many per "
        what += f"{'store request' if below == 'stores' else 'read'} of kernel {worst}."
        require(is_number(given[answer], round(rates[worst])), what, "How many requests share this sum?")
    needed = 32 * 2 / 32
    what = f"sectors_needed = {given['sectors_needed']}: a request stores 32 numbers of 2 bytes, a sector has 32 bytes."
    require(is_number(given["sectors_needed"], needed), what)


def check_limits(given):
    for number, row in versions().items():
        name = f"limit_{number}"
        chosen = given[name]
        require_one_of(name, chosen, [*PARTS, "latency"])
        busiest = max(PARTS, key=lambda part: row[PARTS[part]])
        most = row[PARTS[busiest]]
        if chosen == "latency":
            require(most < FULL, f"{name}: a part reaches {most}%, so it is not only waiting.", "Which part is it?")
            continue
        reached = row[PARTS[chosen]]
        require(chosen == busiest, f"{name}: {chosen} reaches {reached}%, and another part is busier.")
        what = f"{name}: {chosen} is the busiest part, but it reaches only {reached}%, so it is not full."
        require(most >= FULL, what, "What does a thread do while no part is full?")


def check_bytes(given):
    row = versions()[4]
    peak = read("h200-profile")["environment"]["peak_gb_per_s"]
    moved = row["dram_percent"] / 100 * peak * row["launch_us_ncu"] * 1e-3
    what = f"megabytes_4 = {given['megabytes_4']}: in {row['launch_us_ncu']} us the memory has moved "
    what += f"{row['dram_percent']}% of the peak of {peak:,.0f} GB/s."
    require(is_number(given["megabytes_4"], moved), what, "1 GB/s is 1,000 bytes per microsecond.")


def grade(answer):
    given = read_choices(answer, QUESTIONS)
    check_counts(given)
    check_limits(given)
    check_bytes(given)
    return ["all nine answers are right"]
