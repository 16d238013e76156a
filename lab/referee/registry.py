"""A check: a question, the trials that answer it, and the cure. A trial calls the operator once in some unusual way.

A trial is a function of the operator, the device and a few literals. It returns if the operator is right, raises Wrong
if a result is wrong, and lets the operator's own errors through. Its source, with the literals, is the reproducer.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .operator import Operator

Trials = Iterator[functools.partial]  # the answer's type: each of them is right, refused, not applicable, wrong, error
CHECKS: dict[str, "Check"] = {}
trial = functools.partial


@dataclass(frozen=True)
class Check:
    """trials: the function that was decorated. Its docstring is the question."""

    name: str
    trials: Callable[[Operator, str], Trials]
    cure: str
    page: str
    because_of: tuple[str, ...]
    opcheck: tuple[str, ...]
    compiles: bool
    on: tuple[str, ...]
    unasked_on: tuple[str, ...]
    seconds: int
    of_random: bool
    without: Callable[[str], None] | None

    @property
    def question(self) -> str:
        return " ".join((self.trials.__doc__ or "").split())


def check(
    cure: str,
    page: str,
    *,
    because_of: tuple[str, ...] = (),
    opcheck: tuple[str, ...] = (),
    compiles: bool = False,
    on: tuple[str, ...] = ("cpu", "cuda"),
    unasked_on: tuple[str, ...] = ("cpu", "cuda"),
    seconds: int = 60,
    of_random: bool = True,
    without: Callable[[str], None] | None = None,
) -> Callable:
    """Register a function as a check, under its own name.

    cure: one sentence for the author of the operator. page: the page of docs/ to read.
    because_of: checks which, if they are wrong, explain why this one is wrong: it is then no finding of its own.
    opcheck: tests of torch.library.opcheck that ask for the same. compiles: left out by compile=False.
    on: device types; unasked_on: those where it runs without being named. seconds: the time limit.
    of_random: False if it means nothing for an operator that takes random numbers: its calls get other ones.
    without: does the same with torch alone, on a device. If it crashes, a crash of the check is not the operator's.
    """

    def register(trials: Callable) -> Callable:
        name = trials.__name__
        CHECKS[name] = Check(
            name, trials, cure, page, because_of, opcheck, compiles, on, unasked_on, seconds, of_random, without
        )
        return trials

    return register
