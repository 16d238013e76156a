"""Check and time all solutions on a GPU, next to a copy of as many bytes and to torch.

python3 examples/practice/time_solutions.py --json FILE
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import exercises  # noqa: E402
import on_gpu  # noqa: E402
from grading import NotYet  # noqa: E402

from lab import lesson  # noqa: E402


def measure(environment: dict) -> Iterator[dict]:
    """A row for each exercise with a kernel: microseconds, and what the solution moves or computes in them."""
    environment["dtype"] = "as in the tasks"
    kernels = [each for each in exercises.find_all() if each.solution.suffix == ".cu"]
    graders = [exercises.load_grader(each) for each in kernels]
    with ThreadPoolExecutor() as pool:  # nvcc takes seconds for each
        launchers = list(pool.map(lambda each, grader: on_gpu.load(each.solution, grader.LAUNCHER), kernels, graders))
    for exercise, grader, launcher in zip(kernels, graders, launchers, strict=True):
        try:
            found = on_gpu.measure(grader, exercise.solution, exercise.solution, launcher)
        except NotYet as error:
            sys.exit(f"{exercise.name}: {error}")
        us = found["solution"]
        row = {"exercise": exercise.name, "case": found["about"], "us": us, "torch_us": found["torch"]}
        if found["flops"]:
            row["tflops"] = found["flops"] / us * 1e-6
        else:
            row |= {"gb_per_s": found["bytes"] / us * 1e-3, "copy_us": found["copy"], "of_copy": found["copy"] / us}
        yield row


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), lambda: not on_gpu.why_not(), measure)
