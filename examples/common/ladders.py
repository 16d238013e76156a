"""What the programs ladder.py share: they check the rungs of a lesson and time them, run each once for a profiler, or
run them in the emulator and count what they move. A lesson says what its sizes and its contestants are.
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import kernels, lesson  # of the workbench what runs a lesson's programs


@dataclass(frozen=True)
class Size:
    """A size of the problem, with its contestants: the rungs, and what they are compared with."""

    facts: dict[str, object]  # the first columns of its rows
    calls: dict[str, Callable[[], object]]  # contestant: computes a result from the same inputs; RuntimeError: refuses
    standard: str  # the contestant that the others' times are compared with
    error: Callable[[object], float]  # of a result
    most: float  # an error up to this one is right
    time: Callable[[Sequence[str]], dict[str, list[float]]]  # microseconds of these contestants, a number per round
    columns: Callable[[float], dict[str, float]]  # more columns, from a contestant's median


@dataclass(frozen=True)
class Emulated:
    """What runs in the emulator: rungs, a call that computes the result of one, and the right result."""

    rungs: dict[int, str]
    call: Callable[[int], Tensor]
    expected: Tensor
    most: float  # the norm of the error, over that of the right result


def in_turn(time_one: Callable[[str], float], names: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """For Size.time: all contestants one after the other, in each round."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in [*names] * rounds:
        found[name].append(time_one(name))
    return found


def run_each(size: Size) -> Iterator[tuple[str, object]]:
    """The name and the result of each contestant that runs here; says why another does not. The standard must run."""
    for name, call in size.calls.items():
        try:
            yield name, call()
        except RuntimeError as reason:
            if name == size.standard:
                raise
            print(f"{name} is left out: {reason}", flush=True)


def measure_size(size: Size, ratio: str) -> Iterator[dict]:
    """A row for each contestant: its time, and in the column `ratio` the standard's time over it, the median of the
    rounds. Ends the program if a result is wrong."""
    names = []
    for name, result in run_each(size):
        if not (error := size.error(result)) <= size.most:
            where = " x ".join(f"{key} {value}" for key, value in size.facts.items())
            sys.exit(f"{name} is wrong at {where}: the error is {error:.3g}, expected {size.most:.3g} at most")
        names.append(name)
    found = size.time(names)
    for name in names:
        us = statistics.median(found[name])
        ratios = [theirs / ours for theirs, ours in zip(found[size.standard], found[name], strict=True)]
        yield size.facts | {"rung": name, "us": us} | size.columns(us) | {ratio: statistics.median(ratios)}


def count(source: Path, emulated: Callable[[Callable], Emulated]) -> Iterator[dict]:
    """Rows of the emulator's counts."""
    launchers = kernels.load(source, f"-I{source.parents[1]}", emulate=True)
    what = emulated(partial(launchers.launch, "launch_ladder"))
    yield from kernels.count_rungs(launchers, what.rungs, what.call, what.expected, what.most)


def run(
    description: str,
    source: Path,
    *,
    is_ready: Callable[[], bool],
    sizes: Callable[[float], Iterable[Size]],
    once: Callable[[int], Size],
    once_is: str,
    emulated: Callable[[Callable], Emulated],
    ratio: str,
) -> None:
    """The whole program, with the options --json, --once and --emulate.

    source: ladder.cu. is_ready(): builds the lesson; False without kernels. sizes(peak): what is measured; the peak of
    the GPU's memory in GB/s. once(n): the size for --once N, which the help calls `once_is`. emulated(launch): the
    rungs in the emulator; launch(rung, ...) calls launch_ladder there. ratio: the name of the column that compares with
    the standard.
    """
    parser = lesson.options(description)
    parser.add_argument("--once", type=int, metavar="N", help=f"only run each rung once, {once_is}: for a profiler")
    kernels.add_option(parser)
    args = parser.parse_args()
    if args.once is not None and args.once < 1:
        parser.error(f"--once {args.once}: expected a number from 1 on")
    if args.once and (args.emulate or not torch.cuda.is_available()):
        sys.exit("--once runs the rungs on a GPU, for a profiler: leave it out for the emulator")

    def measure(where: dict) -> Iterator[dict]:
        for size in sizes(where["peak_gb_per_s"]):
            yield from measure_size(size, ratio)

    def run_once(_: dict) -> list[dict]:
        for _ in run_each(once(args.once)):
            pass
        torch.cuda.synchronize()
        return []

    lesson.report_or_count(args, is_ready, run_once if args.once else measure, partial(count, source, emulated))
