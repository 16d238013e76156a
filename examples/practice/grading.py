"""What the graders of kernels are made of. A grader.py has

LAUNCHER    the name of the C function that it calls; the last argument, a stream, is added
case(...)   one call of it, as a Case, with other random numbers each time
SIZES       arguments of case(), at sizes that no kernel is tuned for
LARGE       one more, large enough to be timed on a GPU
in_torch()  the same in torch; it gets the arguments of the case by their names
THINK       for kinds of failures, a question that leads on
also()      if there, what no case asks: it gets the launcher and the answer, and raises NotYet

A grader of another kind has grade(answer: Path) instead: it raises NotYet, or returns lines to print. refereed.py helps
with operators, answers.py with choices and functions.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

SECTOR = 32  # bytes


class NotYet(Exception):
    """An answer does not pass. kind: of the failure, as in a grader's THINK; what is wrong; where; a question.

    The kind "machine": the answer cannot be graded here, because a compiler is missing, for example.
    """

    def __init__(self, kind: str, what: str, where: str = "", think: str = ""):
        super().__init__(what)
        self.kind, self.what, self.where, self.think = kind, what, where, think

    def __str__(self) -> str:
        parts = [self.what, self.where, f"Think: {self.think}" if self.think else ""]
        return "\n".join(part for part in parts if part)


@dataclass
class Result:
    """A tensor that the kernel writes: expected, and how much of an error is allowed.

    The default is torch.testing.assert_close's tolerance for the dtype; integers must be equal. atol: a number, or one
    for each element. dtype: that of the kernel's result (default: as expected, but float32 where that is exact, in
    float64). initial: the values before the call (default: not written yet). offset: elements by which it begins behind
    a multiple of 16 bytes.
    """

    expected: Tensor
    rtol: float | None = None
    atol: float | Tensor | None = None
    dtype: torch.dtype | None = None
    initial: Tensor | None = None
    offset: int = 0

    def __post_init__(self):
        exact = self.expected.dtype == torch.float64
        self.dtype = self.dtype or (torch.float32 if exact else self.expected.dtype)
        if self.rtol is None and self.atol is None:
            self.rtol, self.atol = {torch.float32: (1.3e-6, 1e-5)}.get(self.dtype, (0, 0))
        self.rtol, self.atol = self.rtol or 0, 0 if self.atol is None else self.atol

    def allocate(self) -> Tensor:
        """Memory for it, on the device of `expected`."""
        shape, count = self.expected.shape, self.expected.numel()
        memory = torch.empty(count + self.offset, dtype=self.dtype, device=self.expected.device)
        tensor = memory[self.offset :].view(shape)
        if self.initial is not None:
            tensor.copy_(self.initial)
        return tensor

    def is_wrong(self, found: Tensor) -> Tensor:
        """For each element. NaN is right where NaN is expected."""
        if not self.dtype.is_floating_point:
            return found != self.expected
        found, expected = found.double(), self.expected.double()
        allowed = self.atol + self.rtol * expected.abs()
        is_right = ((found - expected).abs() <= allowed) | (found == expected)
        return ~(is_right | (found.isnan() & expected.isnan()))


class Scratch:
    """float32 memory that the kernel may use; what it leaves there does not matter."""

    def __init__(self, *shape: int):
        self.shape = shape

    def allocate(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, device=device)


@dataclass
class Limits:
    """The memory traffic that a case allows. None: not looked at. Counts are those of the emulator."""

    load: int | None = None  # bytes, in sectors of global memory
    store: int | None = None
    load_requests: int | None = None  # load instructions of warps
    store_requests: int | None = None
    atomics: int | None = None  # atomic instructions of warps
    warp: int | None = None  # instructions of one warp that touch global memory, if all have the same share
    conflicts: int | None = None  # bank conflicts
    shared: int | None = None  # turns (wavefronts) of shared memory
    blocks: int | None = None  # of the grid, exactly
    threads: int | None = None  # of a block, exactly
    slack: float = 1.3


@dataclass
class Case:
    """One call of a launcher. arguments: by name, in the launcher's order; of a Result or a Scratch it gets memory."""

    about: str
    arguments: dict[str, Tensor | Result | Scratch | int]
    limits: Limits = field(default_factory=Limits)
    bytes: int = 0  # that a perfect kernel moves; for the time on a GPU
    flops: int = 0

    def __init__(self, about: str, /, **arguments: Tensor | Result | Scratch | int):
        self.about, self.arguments, self.limits = about, arguments, Limits()

    def limit(self, **limits: float) -> "Case":
        for name, value in limits.items():
            setattr(self.limits, name, value if name == "slack" else math.ceil(value))
        if not self.bytes:
            self.bytes = (self.limits.load or 0) + (self.limits.store or 0)
        return self

    def moves(self, bytes: int) -> "Case":
        self.bytes = bytes
        return self

    def computes(self, flops: int) -> "Case":
        self.flops = flops
        return self

    @property
    def results(self) -> dict[str, Result]:
        return {name: each for name, each in self.arguments.items() if isinstance(each, Result)}

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {name: each for name, each in self.arguments.items() if isinstance(each, Tensor)}

    def allocate(self) -> dict[str, Tensor | int]:
        """The arguments, with memory for results."""
        device = next(iter(self.results.values())).expected.device
        given = dict(self.arguments)
        for name, each in given.items():
            if isinstance(each, Result):
                given[name] = each.allocate()
            elif isinstance(each, Scratch):
                given[name] = each.allocate(device)
        return given


def check_values(case: Case, given: dict[str, Tensor | int]) -> None:
    """Compare results with what is expected, and inputs with what they were. NotYet names the first wrong element."""
    for name, result in case.results.items():
        is_wrong = result.is_wrong(given[name])
        if not is_wrong.any():
            continue
        places = is_wrong.nonzero()
        found, expected = (tensor[tuple(places[0])].item() for tensor in (given[name], result.expected))
        what = f"{case.about}: {element(name, places[0])} is {show(found)}, expected {show(expected)}"
        what += f"{differ(found, expected)}."
        if len(places) > 1:
            last = element(name, places[-1])
            what += f" {len(places):,} of {is_wrong.numel():,} elements are wrong, the last of them {last}."
        is_nan = not math.isfinite(found) and math.isfinite(expected)
        raise NotYet("nan" if is_nan else "values", what)


def element(name: str, place: Tensor | tuple[int, ...]) -> str:
    return name + "".join(f"[{int(index)}]" for index in place)


def show(x: float) -> str:
    return f"{x:.6g}" if isinstance(x, float) else str(x)


def differ(found: float, expected: float) -> str:
    """What the difference of two integers tells."""
    if isinstance(found, int) and found != expected and (found - expected) % 2**32 == 0:
        return " (the difference is a multiple of 2^32)"
    return ""
