"""Grade a kernel on the CPU: lab/emulator runs it, watches every access, and counts the memory traffic."""

import math
import re
from collections.abc import Callable
from itertools import compress
from pathlib import Path
from types import ModuleType

from answers import quote, short_errors
from grading import SECTOR, Case, NotYet, Result, Scratch, check_values, element
from torch import Tensor

from lab import emulator

# Kinds of the emulator's faults, by the names that graders use; the first that occurs is shown.
KINDS = {
    "host access": "host",
    "out of bounds": "bounds",
    "misaligned": "misaligned",
    "null pointer": "bounds",
    "barrier": "barrier",
    "mask": "mask",
    "hang": "hang",
    "race": "race",
    "missing wait": "race",
    "uninitialized": "uninitialized",
}
THINK = {
    "compile": "Read the first error; the others often follow from it.",
    "error": "The task says which arguments the launcher must accept.",
    "launch": "A launch needs at least one block, and a block has 1 to 1024 threads.",
    "host": "Which lines run on the CPU? Only the threads of a kernel may use the address of a tensor.",
    "bounds": "Which threads should not touch memory here?",
    "misaligned": "A load of 8 or 16 bytes needs an address that is a multiple of 8 or 16.",
    "barrier": "All threads of a block must reach a barrier.",
    "mask": "All lanes that a mask names must take part.",
    "hang": "What ends the loop, and which thread changes that?",
    "race": "Which of the two accesses should come first, and what makes the other one wait?",
    "uninitialized": "Who should have written it, and when?",
    "unwritten": "Which thread should write it?",
    "no load": "A kernel reads its inputs through the pointers that the launcher gets.",
    "no kernel": "The results are to be computed by threads of a kernel that the launcher starts.",
    "changed": "A kernel may write only where the task says so.",
    "values": "Compute the first wrong element by hand: what does its thread read?",
    "nan": "Which operation can give infinity, or infinity - infinity?",
    "sectors": "Which elements do the 32 threads of a warp touch at the same time, and how often is each touched?",
    "atomics": "How often must a counter in memory be touched?",
    "requests": "How many bytes does one thread move by one instruction?",
    "share": "How many threads does the launcher start, and which of them have work to do?",
    "conflicts": "In which of the 32 banks do the words lie that the threads of a warp touch at the same time?",
    "shared": "How often does a thread use a number that it has loaded?",
    "grid": "The caller chooses the geometry of the launch.",
}
LIBRARIES = re.compile(
    r'^\s*#\s*include\s*[<"]((?:cub|thrust|cutlass|cublas|cudnn|torch|ATen|c10|Python|cooperative_groups/(?:reduce|scan))\b[^>"]*)',
    re.M,
)


def grade(grader: ModuleType, answer: Path) -> list[str]:
    """Run all cases of a grader. NotYet says what is wrong; otherwise lines with what was seen."""
    try:
        launcher = compile_answer(answer, grader.LAUNCHER)
        cases = [grader.case(*size) for size in grader.SIZES]
        reports = [run(launcher, case, answer) for case in cases]
        if hasattr(grader, "also"):
            grader.also(launcher, answer)
    except NotYet as found:
        found.think = found.think or getattr(grader, "THINK", {}).get(found.kind) or THINK.get(found.kind, "")
        raise
    sizes = f"{len(cases)} sizes" if len(cases) > 1 else "one size"
    return [f"right at {sizes}, no faults", *traffic(cases, reports)]


def compile_answer(answer: Path, launcher: str) -> Callable:
    """The launcher of an answer."""
    if library := LIBRARIES.search(answer.read_text("utf-8")):
        think = "It is to be written with what CUDA C++ itself has."
        raise NotYet("library", f"{answer.name} includes {library[1]}.", think=think)
    try:
        kernels = emulator.load(answer)
        return getattr(kernels, launcher)
    except emulator.CannotBuild as error:
        raise NotYet("machine", str(error)) from None
    except emulator.BuildError as error:
        raise NotYet("compile", f"{answer.name} does not compile.", short_errors(str(error), answer)) from None
    except AttributeError:
        think = f'The skeleton has it, as extern "C" const char* {launcher}(...).'
        raise NotYet("compile", f"{answer.name} has no function {launcher}.", think=think) from None


def run(launcher: Callable, case: Case, answer: Path) -> emulator.Report:
    """One case: its faults, its values, its traffic, in this order."""
    before = {name: tensor.clone() for name, tensor in case.inputs.items()}
    given = case.allocate()
    is_new = {
        name: isinstance(each, Scratch) or (isinstance(each, Result) and each.initial is None)
        for name, each in case.arguments.items()
    }
    report = emulator.run(launcher, *(emulator.out(x) if is_new[name] else x for name, x in given.items()))
    check_launch(case, report, answer)
    check_faults(case, report, answer)
    check_written(case, report)
    for name, tensor in before.items():
        if not given[name].equal(tensor) and not (given[name] != given[name]).any():
            raise NotYet("changed", f"{case.about}: the kernel has changed {name}, which it only may read.")
    check_values(case, given)
    check_loaded(case, report)
    check_geometry(case, report)
    check_traffic(case, report, answer)
    check_share(case, report)
    return report


def check_launch(case: Case, report: emulator.Report, answer: Path) -> None:
    if not report.error:
        return
    what = f"{case.about}: the launcher returned an error: {report.error}"
    refused = [fault for fault in report.faults if fault.kind == "launch"]
    if not refused:
        raise NotYet("error", f"{what}.")
    why = refused[0].message.partition("): ")[2].partition(":")[0]  # without the cure, as in sentence()
    raise NotYet("launch", f"{what} ({why}).", quote(answer, refused[0].line))


def check_faults(case: Case, report: emulator.Report, answer: Path) -> None:
    if not report.faults:
        return
    order = [*KINDS, *(fault.kind for fault in report.faults)]
    faults = sorted(report.faults, key=lambda fault: order.index(fault.kind))
    first = faults[0]
    who = ""
    if first.thread is not None:
        who = f" (block {triple(first.block)}, thread {triple(first.thread)})"
    what = f"{case.about}: {first.kind}{who}: {sentence(case, first)}."
    others = sorted({f"{fault.kind} in line {fault.line}" for fault in faults[1:] if fault.line != first.line})
    where = quote(answer, first.line) + ("\nAlso: " + ", ".join(others[:3]) + "." if others else "")
    raise NotYet(KINDS.get(first.kind, first.kind), what, where)


def sentence(case: Case, fault: emulator.Fault) -> str:
    """The emulator's message, with the names of the task, and without the cure, which the reader should find."""
    names = list(case.arguments)
    text = re.sub(r"argument (\d+)", lambda found: names[int(found[1]) - 1], fault.message)
    text = re.sub(r"\((\d+),(\d+),(\d+)\)", lambda found: triple(tuple(map(int, found.groups()))), text)
    head, mark, _ = text.partition(" in any order")
    return (head + mark).removesuffix(".")


def triple(index: tuple[int, int, int]) -> str:
    """As short as it can be: 3, or (3, 1)."""
    if not any(index[1:]):
        return str(index[0])
    return f"({', '.join(map(str, index if index[2] else index[:2]))})"


def check_written(case: Case, report: emulator.Report) -> None:
    """Every element of a result is written, and by a thread: a launcher that computes is none of those."""
    count = sum(result.expected.numel() for result in case.results.values())
    if not report.launches and count:
        raise NotYet("no kernel", f"{case.about}: the launcher has started no kernel.")
    names = list(case.arguments)
    for each in report.unwritten:
        name = names[int(re.search(r"\d+", each.argument)[0]) - 1]
        if name not in case.results or case.results[name].initial is not None:
            continue
        total = case.results[name].expected.numel()
        what = f"{each.count:,} of {total:,} elements of {name} have not been written by any thread"
        raise NotYet("unwritten", f"{case.about}: {what}, the first is {element(name, each.first[0])}.")


def check_loaded(case: Case, report: emulator.Report) -> None:
    """The results come from the inputs, and not from a table that the launcher has computed."""
    needed = -(-sum(map(bytes_in_memory, case.inputs.values())) // SECTOR)
    found = total(report, "load_sectors") + total(report, "copy_sectors")
    if found < needed:
        what = f"the kernel loads {found:,} sectors of 32 bytes, and its inputs fill {needed:,}"
        raise NotYet("no load", f"{case.about}: {what}: its numbers come from elsewhere.")


def bytes_in_memory(x: Tensor) -> int:
    """Without those that a view with a stride of 0 repeats."""
    return x.element_size() * math.prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride)


def check_geometry(case: Case, report: emulator.Report) -> None:
    found, limits = report.launches[0] if report.launches else None, case.limits
    for what, asked, place in (("blocks", limits.blocks, "grid"), ("threads per block", limits.threads, "block")):
        if found and asked is not None and volume(getattr(found, place)) != asked:
            was = volume(getattr(found, place))
            raise NotYet("grid", f"{case.about}: the launcher has started {was:,} {what}, and was asked for {asked:,}.")


def volume(size: tuple[int, int, int]) -> int:
    return size[0] * size[1] * size[2]


def total(report: emulator.Report, name: str) -> int:
    return sum(getattr(launch, name) for launch in report.launches)


def check_traffic(case: Case, report: emulator.Report, answer: Path) -> None:
    limits = case.limits
    for way in ("load", "store"):
        asked = getattr(limits, way)
        if asked is None:
            continue
        ideal, found = -(-asked // SECTOR), total(report, f"{way}_sectors")
        if found > limits.slack * ideal + 8:
            what = f"{case.about}: the values are right, but the kernel {way}s {found:,} sectors of 32 bytes"
            what += f": {found / ideal:.1f} times as many sectors as hold the {asked:,} bytes that it needs to {way}."
            raise NotYet("sectors", what, busiest(report, answer, way))
    for way in ("load", "store"):
        asked, found = getattr(limits, f"{way}_requests"), total(report, f"{way}_requests")
        if asked is not None and found > limits.slack * asked + 8:
            what = f"the values are right, but warps need {found:,} {way} instructions where {asked:,} are enough"
            raise NotYet("requests", f"{case.about}: {what}.", busiest(report, answer, way))
    found = total(report, "atomic_requests")
    if limits.atomics is not None and found > limits.atomics:
        enough = f"at most {limits.atomics:,} should do" if limits.atomics else "none is needed"
        what = f"{case.about}: warps need {found:,} atomic instructions, and {enough}."
        raise NotYet("atomics", what, busiest(report, answer, "atomic"))
    found = total(report, "bank_conflicts")
    if limits.conflicts is not None and found > limits.conflicts:
        what = f"{case.about}: the values are right, but there are {found:,} bank conflicts in shared memory."
        raise NotYet("conflicts", what, most_conflicts(report, answer))
    found = total(report, "wavefronts")
    if limits.shared is not None and found > limits.shared:
        what = f"the values are right, but shared memory takes {found:,} turns; allowed are {limits.shared:,}"
        raise NotYet("shared", f"{case.about}: {what}.")


def check_share(case: Case, report: emulator.Report) -> None:
    """The threads share the work. A warp may have a few times its share, as a thread may take several elements."""
    asked = case.limits.warp
    found = max((launch.most_requests for launch in report.launches), default=0)
    if asked is not None and found > 4 * asked + 8:
        both = sum(total(report, f"{way}_requests") for way in ("load", "store", "atomic", "copy"))
        what = f"the values are right, but one warp needs {found:,} of all {both:,} loads and stores"
        raise NotYet("share", f"{case.about}: {what}, and {asked:,} would do if enough threads shared the work.")


def busiest(report: emulator.Report, answer: Path, way: str) -> str:
    """The line that moves most sectors, and how many each of its requests touches."""
    lines = [line for launch in report.launches for line in launch.lines]
    line = max(lines, key=lambda line: getattr(line, f"{way}_sectors"))
    sectors, requests = getattr(line, f"{way}_sectors"), getattr(line, f"{way}_requests")
    ideal = getattr(line, f"{way}_sectors_ideal", sectors)
    each = f"a warp's {way} here touches {sectors / requests:.1f} sectors"
    if sectors > 1.3 * ideal:
        each += f", and its bytes fill {ideal / requests:.1f}"
    return f"{quote(answer, line.line)}\n    {each}; it is executed {requests:,} times"


def most_conflicts(report: emulator.Report, answer: Path) -> str:
    lines = [line for launch in report.launches for line in launch.lines]
    line = max(lines, key=lambda line: line.bank_conflicts)
    requests = line.shared_load_requests + line.shared_store_requests
    return f"{quote(answer, line.line)}\n    a warp's access here takes {line.wavefronts / requests:.1f} turns"


def traffic(cases: list[Case], reports: list[emulator.Report]) -> list[str]:
    """For an answer that passes: what the first case with a limit moved."""
    lines = []
    limited = (case.limits.load is not None or case.limits.store is not None for case in cases)
    case, report = next(compress(zip(cases, reports, strict=True), limited), (cases[0], reports[0]))
    for way in ("load", "store"):
        if (asked := getattr(case.limits, way)) is not None:
            found, ideal = total(report, f"{way}_sectors"), -(-asked // SECTOR)
            lines.append(f"{case.about}: {found:,} sectors {way.rstrip('e')}ed; the bytes fill {ideal:,}")
    if case.limits.conflicts is not None:
        lines.append(f"{case.about}: {total(report, 'bank_conflicts'):,} bank conflicts")
    return lines
