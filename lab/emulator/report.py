"""What a run found: launches with their memory traffic, faults, elements that no thread wrote."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path

Triple = tuple[int, int, int]


@dataclass
class Counts:
    """Memory traffic, by the rules of an H100. A request is one instruction of one warp.

    Sectors are pieces of 32 bytes of global memory; `ideal`: as few as hold the bytes that were asked for. Wavefronts
    are the turns that shared memory takes, bank conflicts those beyond what the bytes need. `copy`: cp.async, which
    Nsight Compute counts apart from loads.
    """

    load_requests: int = 0
    load_sectors: int = 0
    load_sectors_ideal: int = 0
    store_requests: int = 0
    store_sectors: int = 0
    store_sectors_ideal: int = 0
    atomic_requests: int = 0
    atomic_sectors: int = 0
    copy_requests: int = 0
    copy_sectors: int = 0
    copy_sectors_ideal: int = 0
    shared_load_requests: int = 0
    shared_load_wavefronts: int = 0
    shared_load_bank_conflicts: int = 0
    shared_store_requests: int = 0
    shared_store_wavefronts: int = 0
    shared_store_bank_conflicts: int = 0
    shared_atomic_requests: int = 0

    @property
    def wavefronts(self) -> int:
        return self.shared_load_wavefronts + self.shared_store_wavefronts

    @property
    def bank_conflicts(self) -> int:
        return self.shared_load_bank_conflicts + self.shared_store_bank_conflicts

    def add(self, other: "Counts") -> None:
        for each in fields(Counts):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass
class Line(Counts):
    """The traffic of one line of a source file."""

    file: str = ""
    line: int = 0


@dataclass
class Launch(Counts):
    """One launch: its kernel, its geometry, its traffic, and the same line by line."""

    kernel: str = ""
    grid: Triple = (1, 1, 1)
    block: Triple = (1, 1, 1)
    shared: int = 0  # bytes of dynamic shared memory
    most_requests: int = 0  # to global memory, of the warp that makes most
    lines: list[Line] = field(default_factory=list)


@dataclass
class Fault:
    """Something that is wrong. `other`: block and thread of the other party, for instance of a race."""

    kind: str
    message: str
    kernel: str = ""
    block: Triple | None = None
    thread: Triple | None = None
    file: str = ""
    line: int = 0
    access: str = ""  # read, write, atomic
    address: int = 0
    bytes: int = 0
    other: tuple[Triple, Triple] | None = None
    other_file: str = ""
    other_line: int = 0
    count: int = 1  # how often it was seen in these lines
    is_update: bool = False  # a race whose both sides are such as x += 1

    def __str__(self) -> str:
        where = f"{Path(self.file).name}:{self.line}" if self.file else "the launch"
        who = f", block {show(self.block)}, thread {show(self.thread)}" if self.thread is not None else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        kernel = f", kernel {self.kernel}" if self.kernel else ""
        return f"{self.kind} in {where}{kernel}{who}{times}\n    {self.message}"


@dataclass
class Unwritten:
    """Elements that no thread wrote, of a tensor that is marked by out(), or that threads wrote to elsewhere.

    first: the indices of some of them.
    """

    argument: str
    count: int
    first: list[tuple[int, ...]]
    is_marked: bool = False

    def __str__(self) -> str:
        some = ", ".join(str(list(index)) for index in self.first)
        return f"{self.argument}: {self.count:,} elements were never written, such as {some}"


@dataclass
class Report:
    """error: what the launcher returned, or None. notes: what is right on a GPU, and worth a look."""

    error: str | None = None
    launches: list[Launch] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)
    unwritten: list[Unwritten] = field(default_factory=list)
    result: object = None  # what the launcher returned, unless it was an error

    def __str__(self) -> str:
        parts = [f"the launcher returned an error: {self.error}"] if self.error else []
        if not (self.error or self.launches):
            parts.append("nothing was launched")
        parts += tables(self.launches)
        parts += [f"FAULT: {fault}" for fault in self.faults]
        parts += [f"note: {note}" for note in self.notes]
        parts += [f"{'FAULT' if each.is_marked else 'note'}: {each}" for each in self.unwritten]
        return "\n".join(parts if self.is_wrong() else [*parts, "no faults"])

    def is_wrong(self) -> bool:
        """Whether there is an error, a fault, or an element of a marked result that no thread wrote."""
        return bool(self.error or self.faults or any(each.is_marked for each in self.unwritten))


GLOBAL = {"global load": "load", "global store": "store", "cp.async": "copy", "atomics": "atomic"}
SHARED = {"shared load": "shared_load", "shared store": "shared_store"}


def show(x: Iterable[int] | None) -> str:
    return "(" + ",".join(map(str, x or ())) + ")"


def table(launch: Launch) -> str:
    """The traffic of a launch, in Nsight Compute's words."""
    out = [f"{launch.kernel}  grid {show(launch.grid)}, block {show(launch.block)}"]
    rows = [(name, key) for name, key in GLOBAL.items() if getattr(launch, f"{key}_requests")]
    if rows:
        out.append(f"  {'':14}{'requests':>12}{'sectors':>14}{'ideal':>14}")
    for name, key in rows:
        ideal = getattr(launch, f"{key}_sectors_ideal", "")
        sectors = getattr(launch, f"{key}_sectors")
        line = f"  {name:14}{getattr(launch, f'{key}_requests'):>12,}{sectors:>14,}"
        out.append(line + (f"{ideal:>14,}" if ideal != "" else ""))
    rows = [(name, key) for name, key in SHARED.items() if getattr(launch, f"{key}_requests")]
    if rows:
        out.append(f"  {'':14}{'requests':>12}{'wavefronts':>14}{'conflicts':>14}")
    for name, key in rows:
        values = [getattr(launch, f"{key}_{what}") for what in ("requests", "wavefronts", "bank_conflicts")]
        out.append(f"  {name:14}{values[0]:>12,}{values[1]:>14,}{values[2]:>14,}")
    if launch.shared_atomic_requests:
        out.append(f"  {'shared atomics':14}{launch.shared_atomic_requests:>12,}")
    return "\n".join(out + [f"  {text}" for text in map(describe_line, launch.lines) if text])


def tables(launches: Iterable[Launch]) -> list[str]:
    """A table for each launch; equal ones that follow each other are one, with their number."""
    found = []
    for text, equal in groupby(map(table, launches)):
        head, *rest = text.split("\n")
        count = len(list(equal))
        found.append("\n".join([f"{head}  ({count:,} equal launches)" if count > 1 else head, *rest]))
    return found


def describe_line(line: Line) -> str:
    """What is worth a look in a line: more sectors than needed, bank conflicts."""
    said = []
    for name, key in GLOBAL.items():
        sectors, ideal = getattr(line, f"{key}_sectors"), getattr(line, f"{key}_sectors_ideal", None)
        if ideal and sectors >= 1.5 * ideal:
            said.append(f"{name}: {sectors:,} sectors where {ideal:,} hold the bytes")
    if line.bank_conflicts:
        said.append(f"{line.bank_conflicts:,} bank conflicts")
    return f"{Path(line.file).name}:{line.line}: " + "; ".join(said) if said else ""
