"""Findings, and how they are shown: lines, JSON, and programs that repeat them."""

import ast
import inspect
import json
import math
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from .operator import Operator

ORDER = ("wrong", "crash", "error", "right", "refused", "not applicable")
SHOWN = {"wrong": "WRONG", "crash": "CRASH", "error": "ERROR"}


@dataclass
class Finding:
    """The answer to one check.

    check, question: its name, and what it asks.
    verdict: "right"; "refused", by an error that says why; "not applicable"; "wrong", without an error; "crash", or no
        answer in time; "error", which does not say what is wrong.
    message: what was found and expected; for "refused" the operator's own words.
    cure, page: what to do, and the page of docs/ to read.
    also: other checks that are wrong for the same reason.
    reproducer: a program that repeats a wrong, crash or error: it ends with an error until the operator is cured.
    is_torchs_default: the fault is what torch does on its own if the author does nothing.
    is_seen_by_opcheck: whether torch.library.opcheck finds it; None if opcheck did not run.
    inputs: the numbers of the inputs that the case changes; empty if it changes none, or all of them.
    """

    check: str
    question: str
    verdict: str
    message: str
    cure: str = ""
    page: str = ""
    also: list[str] = field(default_factory=list)
    reproducer: str = ""
    is_torchs_default: bool = False
    is_seen_by_opcheck: bool | None = None
    inputs: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        return self.verdict in SHOWN


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Silent faults and crashes first."""
    return sorted(findings, key=lambda finding: ORDER.index(finding.verdict))


def line(finding: Finding) -> str:
    verdict = SHOWN.get(finding.verdict, finding.verdict)
    message = finding.message if finding.verdict != "right" else ""
    return f"{verdict:<14} {finding.check:<21} {message or finding.question}"[:240]


def details(finding: Finding) -> str:
    """All that is known of a finding."""
    lines = [f"{SHOWN[finding.verdict]}  {finding.check}: {finding.question}", f"  found: {finding.message}"]
    if finding.is_torchs_default:
        lines.append("  This is what torch does if the author of an operator does nothing.")
    lines += [f"  cure: {finding.cure}", f"  read: page {finding.page}"] if finding.cure else []
    lines += [f"  wrong for the same reason: {', '.join(finding.also)}"] if finding.also else []
    if finding.is_seen_by_opcheck is not None:
        lines.append(f"  torch.library.opcheck {'finds it, too' if finding.is_seen_by_opcheck else 'does not find it'}")
    if finding.reproducer:
        lines += ["  to repeat it:", "", textwrap.indent(finding.reproducer.rstrip(), "    ")]
    return "\n".join(lines)


def to_json(reports: Mapping[Operator, Sequence[Finding]], device: str) -> str:
    operators = [
        {"operator": operator.title, "findings": [asdict(finding) for finding in findings]}
        for operator, findings in reports.items()
    ]
    environment = {"torch": torch.__version__, "python": sys.version.split()[0], "device": device}
    if device.startswith("cuda") and torch.cuda.is_available():
        environment["gpu"] = torch.cuda.get_device_name(device)
    return json.dumps({"environment": environment, "operators": operators}, indent=1) + "\n"


def reproducer(operator: Operator, device: str, function: Callable, arguments: str, message: str) -> str:
    """A program: the trial's own source, and a call of it."""
    package = __package__
    source = textwrap.dedent(inspect.getsource(function))
    comment = "\n".join(textwrap.wrap(message, 110, initial_indent="# ", subsequent_indent="# "))
    where = f"{_path_from_here(operator.file)!r}, {operator.title!r}" if operator.file else "__file__"
    call = f"{function.__name__}(operator, {device!r}{', ' if arguments else ''}{arguments})"
    lines = [comment, f"# Run it where `import {package}` works. It ends with an error until the operator is cured."]
    lines += _imports(function, ast.parse(f"{source}\n{call}"), package)
    lines += ["", f"operator = load({where}){'' if operator.file else '  # your description'}", "", ""]
    return "\n".join([*lines, source.rstrip(), "", "", call]) + "\n"


def _path_from_here(file: str) -> str:
    """Relative to the current folder if the file lies in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def literal(value: object) -> str:
    """As Python reads it: its repr, but for NaN and infinity."""
    return repr(value) if not isinstance(value, float) or math.isfinite(value) else f'float("{value}")'


def _imports(function: Callable, program: ast.Module, package: str) -> list[str]:
    """Import statements for the global names that a program uses, which are those of a function's module."""
    used = {node.id for node in ast.walk(program) if isinstance(node, ast.Name)} - {function.__name__}
    lines, homes = [], {package: {"load"}}
    for name in sorted(used & set(function.__globals__)):
        value = function.__globals__[name]
        if name == "Operator":
            homes[package].add(name)
        elif isinstance(value, types.ModuleType):
            parent, _, last = value.__name__.rpartition(".")
            lines.append(f"from {parent} import {last}" if parent else f"import {last}")
        else:
            home = getattr(value, "__module__", function.__module__)
            homes.setdefault(home if isinstance(home, str) else function.__module__, set()).add(name)
    lines = sorted({*lines, *(["import torch"] if "torch" in used else [])})
    for home, names in sorted(homes.items()):
        statement = f"from {home} import {', '.join(sorted(names))}"
        if len(statement) > 110:
            statement = f"from {home} import (\n" + "".join(f"    {name},\n" for name in sorted(names)) + ")"
        lines += [""] * (home == package and bool(lines)) + [statement]
    return lines
