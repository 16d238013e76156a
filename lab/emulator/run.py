"""Run a launcher or a kernel on CPU tensors, watch it, and report."""

import ctypes
import functools
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import build, faults
from .lines import Lines, Place
from .report import Counts, Fault, Launch, Line, Report, Unwritten

CONSTRUCTOR = re.compile(r"\b(\w+)(<.*>)?::\1$")
ORDERS = {"forward": 0, "backward": 1, "random": 2}
LETTERS: dict[str, Any] = {
    "b": ctypes.c_int8, "B": ctypes.c_uint8, "h": ctypes.c_int16, "H": ctypes.c_uint16, "i": ctypes.c_int32,
    "I": ctypes.c_uint32, "q": ctypes.c_int64, "Q": ctypes.c_uint64, "f": ctypes.c_float, "d": ctypes.c_double,
    "e": ctypes.c_int32, "p": ctypes.c_void_p, "s": ctypes.c_void_p, "z": ctypes.c_char_p, "v": None,
}  # fmt: skip
NUMBERS = "bBhHiIqQfde"
WORDS = {"b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "q": "int64"}
WORDS |= {"Q": "uint64", "f": "float", "d": "double", "e": "cudaError_t", "p": "pointer", "s": "stream"}
WORDS |= {"z": "string", "r": "reference", "?": "struct"}
SPACES = ("global", "shared")
KINDS = ("load", "store", "atomic", "copy", "load")  # the last is ldmatrix
LOCK = threading.RLock()  # one run at a time: there is one emulated GPU


@dataclass
class Out:
    """A tensor whose elements count as not yet written."""

    tensor: Tensor


def out(tensor: Tensor) -> Out:
    """Mark an argument of run() as a result: its elements count as not yet written, as those of torch.empty().

    Reading one before a thread has written it is a fault, and so is every element that no thread writes.
    """
    return Out(tensor)


@dataclass(frozen=True)
class Function:
    """A launcher or a kernel of a loaded library. A kernel with its geometry: kernel[grid, block, shared bytes]."""

    name: str
    signature: str  # a letter for the result's type, then one for each parameter
    address: int
    is_kernel: bool
    call: int
    lines: Lines

    def __getitem__(self, how: tuple) -> "Bound":
        if not self.is_kernel or not isinstance(how, tuple) or not 2 <= len(how) <= 3:
            raise TypeError(f"{self.name}: expected kernel[grid, block] or kernel[grid, block, shared bytes]")
        return Bound(self, triple(how[0]), triple(how[1]), how[2] if len(how) > 2 else 0)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(WORDS[letter] for letter in self.signature[1:])})"


@dataclass(frozen=True)
class Bound:
    """A kernel and the geometry of its launch."""

    function: Function
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int


class Kernels:
    """The launchers and kernels of some files, as attributes by their names."""

    def __init__(self, library: Path):
        self.library = library
        emulator().emulator_exports()  # forgets those of a library that failed to load
        ctypes.CDLL(str(library))
        lines = Lines(library)
        found = json.loads(emulator().emulator_exports())
        self.functions = {row[0]: Function(*row, lines=lines) for row in found}  # type: ignore[misc]  # mypy: rest unknown

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("functions", {})
        if name in functions:
            return functions[name]
        inner = [each for full, each in functions.items() if full.rpartition("::")[2] == name]
        if len(inner) == 1:  # of a namespace
            return inner[0]
        has = ", ".join(map(str, self.functions.values())) or "none that is no template"
        raise AttributeError(f"{name} is no launcher or kernel of these files; they have: {has}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.functions]


@functools.cache
def emulator() -> ctypes.CDLL:
    """The library with the emulator."""
    library = ctypes.CDLL(str(build.runtime()))
    library.emulator_exports.restype = ctypes.c_char_p
    library.emulator_call.restype = ctypes.c_char_p
    library.emulator_results.restype = ctypes.c_char_p
    library.emulator_error_text.restype = ctypes.c_char_p
    return library


@functools.cache
def _load(library: Path) -> Kernels:
    return Kernels(library)


def load(source: Path | str | Sequence[Path | str], flags: Sequence[str] = ()) -> Kernels:
    """Compile one or several .cu files with g++, unless that was done before, and load them.

    flags: as for a compiler, such as -I and -D; those that only nvcc knows are left out. Launchers (functions that are
    no templates) and kernels are attributes of what it returns. BuildError has the compiler's words.
    """
    sources = [source] if isinstance(source, (str, Path)) else source
    with LOCK:
        emulator()
        return _load(build.build([Path(each) for each in sources], flags))


def run(
    function: Function | Bound,
    *arguments: Tensor | Out | int | float | object,
    tensors: Mapping[str, Tensor | Out] | Sequence[Tensor | Out] = (),
    order: str = "forward",
    seed: int = 0,
    counts: bool = True,
    watch: bool = True,
    steps: int = 1 << 25,
) -> Report:
    """Call a launcher, or launch a kernel, with CPU tensors and numbers; returns what was found.

    The stream, a launcher's last parameter, is added. tensors: more memory that the kernels may touch, for instance
    where pointers are in a struct. order: of threads and blocks, "forward", "backward", or "random" by `seed`.
    counts: count memory traffic. watch: find races, uninitialized reads and elements that no thread wrote; accesses
    out of bounds are always found. steps: as many, without a thread that ends or a barrier that opens, are a hang.
    TypeError if the arguments do not fit.
    """
    bound = function if isinstance(function, Bound) else None
    callee = bound.function if bound else function
    if not isinstance(callee, Function):
        raise TypeError(f"expected a function of what load() returned, found {type(function).__name__}")
    if callee.is_kernel and not bound:
        raise TypeError(f"{callee.name} is a kernel: run({callee.name}[grid, block], ...)")
    values = fill_in(callee, arguments)
    with LOCK:
        watched = Watched(values, tensors)
        emulator().emulator_begin(ORDERS[order], ctypes.c_uint64(seed), int(counts), int(watch), ctypes.c_uint64(steps))
        try:
            watched.register()
            result = launch(bound, values) if bound else call(callee, values)
            report = read_results(callee, watched)
        finally:
            emulator().emulator_end()
    if isinstance(result, bytes):
        report.error = result.decode()
    elif result and (bound or callee.signature[0] == "e"):
        report.error = emulator().emulator_error_text(result).decode()
    else:
        report.result = result
    if not watch or (report.error and not report.launches):  # the launcher has refused its arguments
        report.unwritten = []
    return report


def triple(x: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (x,) if isinstance(x, int) else tuple(x)
    x_size, y_size, z_size, *_ = (*sizes, 1, 1, 1)
    return x_size, y_size, z_size


def fill_in(function: Function, arguments: tuple) -> list:
    """The arguments, with a stream behind them if one is missing. Those of main are strings, after a program's name."""
    letters, values = function.signature[1:], list(arguments)
    if function.name == "main" and len(letters) == 2 and all(isinstance(value, str) for value in values):
        texts = [b"main", *(value.encode() for value in values)]
        values = [len(texts), (ctypes.c_char_p * (len(texts) + 1))(*texts, None)]
    has_stream = letters[-1:] in ("s", "p") and not function.is_kernel
    if has_stream and len(values) == len(letters) - 1:
        values.append(None)
    if len(values) != len(letters):
        added = " (a stream behind them is added)" if has_stream else ""
        raise TypeError(f"{function} takes {len(letters)} arguments, found {len(arguments)}{added}")
    return values


def held(value: Any, letter: str, name: str) -> object:
    """An argument as an object of ctypes, whose memory a function reads."""
    value = value.tensor if isinstance(value, Out) else value
    kind: Any = LETTERS.get(letter)
    if isinstance(value, Tensor) and letter in "ps":
        return kind(value.data_ptr())
    if value is None and letter in "ps":
        return kind(None)
    if isinstance(value, (int, float)) and letter in NUMBERS and (letter in "fd" or not isinstance(value, float)):
        if letter not in "fd" and kind(value).value != value:
            raise TypeError(f"{name}: {value} does not fit {WORDS[letter]}")
        return kind(value)
    value = getattr(value, "_obj", value)  # byref(struct) is a struct here
    if hasattr(type(value), "from_buffer"):  # of ctypes
        return ctypes.pointer(value) if letter in "ps" and not isinstance(value, ctypes.c_void_p) else value
    found = "a tensor" if isinstance(value, Tensor) else repr(value)
    raise TypeError(f"{name}: expected {WORDS[letter]}, found {found}")


def held_arguments(function: Function, values: list) -> list:
    letters = function.signature[1:]
    pairs = enumerate(zip(values, letters, strict=True), 1)
    return [held(value, letter, f"{function.name}, argument {i}") for i, (value, letter) in pairs]


def pointers_to(arguments: list) -> ctypes.Array:
    return (ctypes.c_void_p * (len(arguments) + 1))(*(ctypes.addressof(each) for each in arguments))


def call(function: Function, values: list) -> object:
    """Call a launcher. What it throws is an error, as bytes."""
    kind = LETTERS.get(function.signature[0], ctypes.c_int64)
    if not function.call:
        raise TypeError(f"{function} takes or returns a class; expected numbers, pointers, structs")
    arguments, result = held_arguments(function, values), (kind or ctypes.c_int64)()
    address, (has_ended, status) = ctypes.c_void_p(function.address), (ctypes.c_int(), ctypes.c_int())
    error = emulator().emulator_call(
        ctypes.c_void_p(function.call), address, pointers_to(arguments), ctypes.byref(result),
        ctypes.byref(has_ended), ctypes.byref(status),
    )  # fmt: skip
    if has_ended and status.value < 0:
        return b"it has aborted"
    if has_ended:
        return status.value if function.name == "main" else f"it has called exit({status.value})".encode()
    return error or (result.value if kind else None)


def launch(bound: Bound, values: list) -> int:
    """Launch a kernel. Returns CUDA's error, 0 if there is none."""
    function, triple_of_c = bound.function, ctypes.c_uint * 3
    arguments = held_arguments(function, values)
    return emulator().emulator_call_kernel(
        ctypes.c_void_p(function.call), ctypes.c_void_p(function.address), pointers_to(arguments),
        triple_of_c(*bound.grid), triple_of_c(*bound.block), ctypes.c_size_t(bound.shared), function.name.encode(),
    )  # fmt: skip


class Watched:
    """The tensors of a run. Those that share memory are one region."""

    def __init__(self, values: list, tensors: Mapping | Sequence):
        more = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
        named = [(f"argument {i + 1}", value) for i, value in enumerate(values) if isinstance(value, (Tensor, Out))]
        named += [(name if isinstance(name, str) else f"tensors[{name}]", value) for name, value in more]
        self.items: list[tuple[str, Tensor, bool]] = []
        for name, value in named:
            tensor = value.tensor if isinstance(value, Out) else value
            if tensor.device.type != "cpu":
                raise TypeError(f"{name}: expected a tensor on the CPU, found one on {tensor.device}")
            self.items.append((name, tensor, isinstance(value, Out)))
        self.names: list[str] = []  # of regions
        self.sizes: list[int] = []  # bytes of an element
        self.regions: list[tuple[int, int, bool]] = []  # begin, end, is new
        self.region_of: list[int] = []
        self._join()

    def _join(self) -> None:
        """Make regions of tensors that overlap."""
        extents = [extent(tensor) for _, tensor, _ in self.items]
        self.region_of = [-1] * len(extents)
        for i in sorted(range(len(extents)), key=extents.__getitem__):
            begin, end = extents[i]
            if begin == end:
                continue
            name, tensor, is_new = self.items[i]
            text = f"{name} ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
            if self.regions and begin < self.regions[-1][1]:
                first, last, was_new = self.regions[-1]
                self.regions[-1] = (first, max(last, end), was_new and is_new)
                self.names[-1] += f" and {text}"
            else:
                self.regions.append((begin, end, is_new))
                self.names.append(text)
                self.sizes.append(tensor.element_size())
            self.region_of[i] = len(self.regions) - 1

    def register(self) -> None:
        for (begin, end, is_new), name in zip(self.regions, self.names, strict=True):
            emulator().emulator_tensor(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), int(is_new), name.encode())

    def unwritten(self) -> list[Unwritten]:
        """Of results: tensors that a thread wrote to, or that are marked by out()."""
        found = []
        for (name, tensor, is_new), region in zip(self.items, self.region_of, strict=True):
            if region < 0:
                continue
            size, (begin, end, _) = tensor.element_size(), self.regions[region]
            written = torch.zeros((end - begin) // size, dtype=torch.uint8)
            pointer = ctypes.c_void_p(written.data_ptr())
            was_written = emulator().emulator_written_elements(region, ctypes.c_size_t(size), pointer)
            if not (was_written or is_new):
                continue
            offset = (tensor.data_ptr() - begin) // size
            view = written.as_strided(tensor.shape, tensor.stride(), offset)
            if is_new or view.any():
                missing = (view == 0).nonzero()
                if len(missing):
                    found.append(Unwritten(name, len(missing), [tuple(row) for row in missing[:4].tolist()], is_new))
        return found


def extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to behind its last one."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


# ---- Results.


def read_results(function: Function, watched: Watched) -> Report:
    found, lines = json.loads(emulator().emulator_results()), function.lines
    addresses = {launch["kernel"] for launch in found["launches"]}
    addresses |= {row[0] for launch in found["launches"] for row in launch["counts"]}
    for each in found["faults"]:
        addresses |= {each.get("pc", 0), each.get("other_pc", 0), each.get("made_by", 0), each["kernel"]}
        addresses |= {position[0] for position in each.get("positions", ())}
    lines.look_up(addresses)
    report = Report(launches=[make_launch(each, lines) for each in found["launches"]])
    is_reference = not found["launches"] and any(each["kind"] == "host access" for each in found["faults"])
    if not is_reference and not found["was_ended"]:  # by a fault, after which nothing else was written
        report.unwritten = watched.unwritten()
    for each in found["faults"]:
        if is_reference and each["kind"] == "host access" and each["label"] >= 0:
            continue  # a function for the CPU
        if (fault := make_fault(each, lines, watched)) is not None:
            (report.notes if each["is_note"] else report.faults).append(fault)
    drop_symptoms(report)
    return report


def drop_symptoms(report: Report) -> None:
    """Where two lines race, one may also read before anything is written, or write what is there."""
    races = [fault for fault in report.faults if fault.kind == "race"]
    lines = {line for fault in races for line in lines_of(fault)}
    report.faults = [each for each in report.faults if each.kind != "uninitialized" or not lines_of(each) <= lines]
    updated: set[frozenset] = set()  # x += 1 is a read and a write, and each of them races: said once
    for each in list(report.faults):
        if each.is_update and lines_of(each) in updated:
            report.faults.remove(each)
        elif each.is_update:
            updated.add(lines_of(each))
    report.notes = [note for note in report.notes if lines_of(note) not in map(lines_of, races)]


def name_line(file: str, line: int, here: str) -> str:
    """A line, with its file unless that is the one of `here`."""
    return f"line {line}" if file == here else f"{Path(file).name}:{line}"


def name_place(place: Place) -> str:
    return f"{Path(place[0]).name}:{place[1]}" if place[1] else ""


def lines_of(fault: Fault) -> frozenset:
    other = {(fault.other_file, fault.other_line)} if fault.other_line else set()
    return frozenset({(fault.file, fault.line)} | other)


def make_launch(facts: dict, lines: Lines) -> Launch:
    kernel = lines.kernel(facts["kernel"]) or facts["text"]
    if CONSTRUCTOR.search(kernel):  # which has made an argument, before the kernel began
        kernel = facts["text"] or kernel
    launch = Launch(kernel=kernel, shared=facts["shared"], most_requests=facts["most_requests"])
    launch.grid, launch.block = tuple(facts["grid"]), tuple(facts["block"])
    by_line: dict[tuple[str, int], Line] = {}
    for address, space, kind, *numbers in facts["counts"]:
        counts = make_counts(SPACES[space], KINDS[kind], *numbers)
        file, number = lines.place(address)
        by_line.setdefault((file, number), Line(file=file, line=number)).add(counts)
        launch.add(counts)
    launch.lines = [by_line[key] for key in sorted(by_line)]
    return launch


def make_counts(
    space: str, kind: str, requests: int, sectors: int, ideal: int, wavefronts: int, conflicts: int
) -> Counts:
    if space == "global":
        names = {"requests": requests, "sectors": sectors, "sectors_ideal": ideal}
        prefix = kind
    else:
        names = {"requests": requests, "wavefronts": wavefronts, "bank_conflicts": conflicts}
        prefix = f"shared_{kind}"
    known = Counts.__dataclass_fields__
    return Counts(**{f"{prefix}_{name}": x for name, x in names.items() if f"{prefix}_{name}" in known})


def make_fault(facts: dict, lines: Lines, watched: Watched) -> Fault | None:
    file, line = lines.place(facts["pc"])
    if "line" in facts:
        file, line = facts["file"], facts["line"]
    other_file, other_line = lines.place(facts.get("other_pc", 0))
    if facts.get("is_two_places") and (file, line) == (other_file, other_line):
        return None  # the compiler has made two copies of one line
    facts["other_place"] = name_line(other_file, other_line, file)
    if "made_by" in facts and (made := lines.place(facts["made_by"]))[1]:
        facts["made_in"] = name_line(*made, file)
    if "variable_at" in facts:
        facts["variable"] = lines.variable(facts["variable_at"])
        if not facts["variable"]:
            return None  # a static variable of a kernel, for instance
    if (file, line) != (other_file, other_line):
        facts.pop("is_update", None)  # a loop may read, and write in its next turn
    facts["positions"] = [(name_place(lines.place(pc)), *rest) for pc, *rest in facts.get("positions", ())]
    fault = Fault(facts["kind"], faults.sentence(facts, watched.names, watched.sizes), file=file, line=line)
    fault.is_update = "is_update" in facts
    fault.kernel = lines.kernel(facts["kernel"]) or facts.get("text", "")
    fault.access, fault.count = facts["access"], facts["count"]
    fault.address, fault.bytes = facts["address"], facts["bytes"]
    if "thread" in facts:
        fault.block, fault.thread = tuple(facts["block"]), tuple(facts["thread"])
    if "other_thread" in facts:
        fault.other = tuple(facts["other_block"]), tuple(facts["other_thread"])
        fault.other_file, fault.other_line = other_file, other_line
    return fault
