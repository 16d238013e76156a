"""judge(): ask all checks of an operator, each in a process of its own, and put findings of one cause together."""

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .operator import Operator, SpecError, files_being_loaded, first_line
from .processes import Ended, dies_alone, fork, may_fork, start
from .registry import CHECKS, Check
from .report import Finding, in_order, literal, reproducer
from .trial import NotApplicable, Refused, Unclear, Wrong, is_raised_by_description, is_unclear

SUBJECTS = ("values", "arguments", "memory", "writing", "gradients", "derivatives", "tracing", "export", "modes")
for _subject in (*SUBJECTS, "state", "gpu"):
    importlib.import_module(f".{_subject}", __package__)  # registers its checks

# Many checks need them, and they take seconds: imported once, and not in each fork. The others may use CUDA.
SLOW_IMPORTS = ("torch._dynamo", "torch.fx.experimental.proxy_tensor")
SLOW_IMPORTS_ON_CPU = ("torch._functorch.aot_autograd", "torch.export", "torch._inductor.compile_fx")
# Where one of these is wrong, so may be all that compares results; each of them because of those before it.
MEMORY = ("after_results", "unwritten", "uninitialized", "writes")
UNSTABLE = (*MEMORY, "random_numbers", "repeated", "kept_results", "stale", "values")
# If the plain call crashes, only these are asked: they may say why.
WHY_CRASH = ("neighbours", "page_ends", "after_results", "unwritten")
NO_COMPILER = ("InvalidCxxCompiler", "CppCompileError")  # torch's names for these errors
Progress = Callable[[Check | None, Finding | None], None]


def judge(
    operator: Operator,
    device: str = "cpu",
    *,
    checks: Sequence[str] | None = None,
    compile: bool = True,
    progress: Progress = lambda check, finding: None,
) -> list[Finding]:
    """Ask the checks of an operator; returns a Finding for each of them, silent faults and crashes first.

    device: "cpu", "cuda" or "cuda:1". checks: names; default: all. compile=False leaves out those that take a C++
    compiler or Triton. progress is called before each check, and with its finding after it.
    Raises SpecError if the call, its reference or its inputs fail as described: then there is nothing to judge.
    """
    if files_being_loaded:
        cure = "put the call below `if __name__ == '__main__':`"
        raise SpecError(f"{files_being_loaded[-1]} calls judge() while it is loaded as a description; {cure}")
    chosen = _chosen(checks, device, compile)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # torch.cuda.is_available() then leaves CUDA to forks
    _prepare(operator, device)
    if checks is None:
        for module in SLOW_IMPORTS + (SLOW_IMPORTS_ON_CPU if device == "cpu" else ()):
            importlib.import_module(module)
    findings: list[Finding] = []
    for check in chosen:
        has_crashed = any(finding.check == "values" and finding.verdict == "crash" for finding in findings)
        if has_crashed and check.name not in WHY_CRASH:
            continue
        progress(check, None)
        findings.append(ask(operator, device, check))
        progress(check, findings[-1])
    _group(findings)
    if checks is None:
        findings.append(_compare_with_opcheck(findings, *ask_opcheck(operator, device)))
    return in_order(findings)


def _chosen(names: Sequence[str] | None, device: str, compile: bool) -> list[Check]:
    if "opcheck" in (names or ()):
        raise SpecError("opcheck is torch's own check, and runs where all checks do: leave out --check")
    if unknown := sorted(set(names or ()) - set(CHECKS)):
        raise SpecError(f"no such check: {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    kind = device.split(":")[0]
    found = [CHECKS[name] for name in names or CHECKS]
    found = [check for check in found if kind in check.on]
    return found if names else [c for c in found if kind in c.unasked_on and (compile or not c.compiles)]


def _prepare(operator: Operator, device: str) -> None:
    """The plain call has to work. What is learnt about the operator is kept, so that no check has to learn it again."""

    def work(say):
        try:
            _use(device)
            operator.fresh(device)
            say({"learnt": operator.learnt})
        except SpecError as error:
            say({"error": str(error)})

    if not may_fork(device):
        return None
    ended = fork(work, 120)
    said = ended.events[-1] if ended.events else {}  # if it crashed, checks will, too
    if "error" in said:
        raise SpecError(said["error"])
    nothing: dict = {"written": [], "returned": [], "by_reference": [], "returned_by_reference": []}
    learnt = said.get("learnt", nothing)
    operator.learnt = {name: [tuple(place) for place in places] for name, places in learnt.items()}


def _use(device: str) -> None:
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)


def ask(operator: Operator, device: str, check: Check) -> Finding:
    """One check, in a process of its own."""
    before = time.monotonic()
    if may_fork(device):
        ended = fork(lambda say: run_trials(operator, device, check, say), check.seconds)
    elif operator.file is None:
        reason = "after CUDA or autograd's threads no fork works, so each check loads it anew"
        raise SpecError(f"{operator.title}: describe it in a file: {reason}")
    else:
        options = ["--operator", operator.title, "--device", device, "--check", check.name]
        ended = start([operator.file, *options], check.seconds + 60)
    if ended.events and "error" in ended.events[-1]:
        raise SpecError(ended.events[-1]["error"])
    finding = _finding(operator, device, check, ended)
    finding.seconds = round(time.monotonic() - before, 2)
    return finding


def run_trials(operator: Operator, device: str, check: Check, say: Callable[[dict], None]) -> None:
    """Run a check here, until something is wrong. Says which trial begins, so that a crash has a name, and the end."""
    _use(device)
    operator.say = say
    operator.fresh(device)  # learns what is written
    if operator.is_random and not check.of_random:
        return say({"verdict": "not applicable", "message": "the operator is tagged nondeterministic_seeded"})
    counts = {"right": 0, "refused": 0, "not applicable": 0, "error": 0}
    firsts: dict[str, dict] = {}
    try:
        for each in check.trials(operator, device):
            name = {
                "function": each.func.__name__,
                "module": each.func.__module__,
                "arguments": ", ".join(f"{key}={literal(value)}" for key, value in each.keywords.items()),
                "inputs": _inputs_in(each.keywords),
            }
            say({"begins": name, "at": time.monotonic()})
            verdict, message, is_default = attempt(each, operator, device)
            if verdict == "wrong":
                return say({"verdict": verdict, "message": message, "trial": name, "is_default": is_default})
            counts[verdict] += 1
            firsts.setdefault(verdict, {"verdict": verdict, "message": message, "trial": name})
            if "CUDA error" in message:
                break  # CUDA then refuses all that follows
    except NotApplicable as error:
        firsts.setdefault("not applicable", {"verdict": "not applicable", "message": str(error)})
    except Exception as error:  # the check asks the operator, too, before a trial begins
        firsts.setdefault("error", {"verdict": "error", "message": f"a plain call fails: {first_line(error)}"})
    for verdict in ("error", "right", "refused", "not applicable"):
        if verdict in firsts:
            said = dict(firsts[verdict])
            if verdict == "right" and counts["refused"]:
                said["message"] = (
                    f"{counts['right']} cases right, {counts['refused']} refused: {firsts['refused']['message']}"
                )
            return say(said)
    say({"verdict": "not applicable", "message": "no case fits this operator"})


def _inputs_in(keywords: Mapping[str, Any]) -> list[int]:
    """The numbers of the inputs that a trial changes."""
    places = [*keywords.get("places", ()), *([keywords["place"]] if "place" in keywords else [])]
    numbers = {place[0] for place in places} | ({keywords["position"]} if "position" in keywords else set())
    return sorted(numbers)


def attempt(each, operator: Operator, device: str) -> tuple[str, str, bool]:
    """The verdict of one trial, why, and whether it is torch's default."""
    try:
        each(operator, device)
    except Wrong as error:
        return "wrong", str(error), error.is_torchs_default
    except NotApplicable as error:
        return "not applicable", str(error), False
    except Refused as error:
        return "refused", str(error), False
    except Unclear as error:
        return "error", str(error), False
    except Exception as error:
        if any(words in f"{type(error).__name__}: {error}" for words in NO_COMPILER):
            cure = "torch's compiler finds no C++ compiler or no Python.h; `python3 -m lab.doctor` names the cure"
            return "not applicable", f"{cure}: {first_line(error)}", False
        if not is_unclear(error):
            return "refused", first_line(error), False
        if is_raised_by_description(operator, error):
            return "not applicable", f"`call` of the description fails by itself: {first_line(error)}", False
        return "error", first_line(error), False
    return "right", "", False


def _told(ended: Ended) -> str:
    lines = [line.strip() for line in ended.output.splitlines() if line.strip()]
    return f"{ended.problem}; {lines[-1]}" if lines and not ended.died else ended.problem


def _finding(operator: Operator, device: str, check: Check, ended: Ended) -> Finding:
    """The finding from the events of a process, or from how it died."""
    last = ended.events[-1] if ended.events else {}
    begun = [event for event in ended.events if "begins" in event]
    is_slow = ended.problem.startswith("no answer")
    if "verdict" in last:
        verdict, message, trial = last["verdict"], last["message"], last.get("trial")
    else:
        verdict, message, trial = "crash", _told(ended), begun[-1]["begins"] if begun else None
        if last.get("reference") == "runs" and (is_slow or "SIGKILL" in ended.problem):  # as where memory is used up
            verdict, message = "not applicable", f"the reference takes too much time or memory: {ended.problem}"
        elif is_slow and begun and time.monotonic() - begun[-1]["at"] < check.seconds / 2:
            verdict, message = "not applicable", f"too slow for {check.seconds} s: {len(begun)} cases were tried"
        elif check.without and ended.died and dies_alone(check.without, device, check.seconds):
            verdict, message = "not applicable", f"torch dies without the operator, too; here {ended.problem}"
        elif trial:
            message += f", in {trial['function']}({trial['arguments']})"
        elif ended.problem.startswith("the process ended"):
            verdict = "error"
    finding = Finding(check.name, check.question, verdict, message)
    if finding.is_wrong:
        finding.cure, finding.page = check.cure, check.page
        finding.is_torchs_default = last.get("is_default", False)
        if trial:
            finding.inputs = trial["inputs"]
            function = getattr(importlib.import_module(trial["module"]), trial["function"])
            finding.reproducer = reproducer(operator, device, function, trial["arguments"], f"{check.name}: {message}")
    return finding


def _group(findings: Sequence[Finding]) -> None:
    """A check that is wrong because of another one is no finding of its own."""
    by_name = {finding.check: finding for finding in findings}
    root_of: dict[str, Finding] = {}
    for finding in findings:
        if finding.is_wrong:
            causes = [by_name[name] for name in _causes_of(finding) if name in by_name and by_name[name].is_wrong]
            causes = [cause for cause in causes if _may_explain(cause, finding)]
            if causes:
                root_of[finding.check] = causes[0]
    for name in list(root_of):
        root, seen = root_of[name], {name}
        while root.check in root_of and root.check not in seen:
            seen.add(root.check)
            root = root_of[root.check]
        if root.check != name and root.check not in root_of:
            root.also.append(name)
            finding = by_name[name]
            finding.message, finding.reproducer = f"wrong, because of {root.check}", ""
            finding.cure = finding.page = ""
            finding.verdict = "not applicable"


def _may_explain(cause: Finding, finding: Finding) -> bool:
    """A crash is no consequence of a silent fault, unless that writes memory, or has to do with the same input."""
    if finding.verdict != "crash" or cause.check in MEMORY:
        return True
    if cause.verdict == "crash" and not (cause.inputs and finding.inputs):
        return True
    return not set(cause.inputs).isdisjoint(finding.inputs)


def _causes_of(finding: Finding) -> tuple[str, ...]:
    names = CHECKS[finding.check].because_of
    if finding.check in UNSTABLE:
        names = UNSTABLE[: UNSTABLE.index(finding.check)]
    elif names:  # it compares results
        names += UNSTABLE
    if finding.verdict == "crash" and finding.check not in UNSTABLE:
        names += ("after_results", "dtypes", "bounds", "garbage_values", "arguments", "shapes", "values", "strides")
    return tuple(name for name in names if name != finding.check)


def ask_opcheck(operator: Operator, device: str) -> tuple[dict[str, str], str]:
    """torch.library.opcheck on the calls that the operator makes: for each of its tests "" or the error. Without a
    test: why it cannot be asked."""

    def work(say):
        from torch.library import opcheck

        _use(device)
        found: dict[str, str] = {}
        inputs = operator.fresh(device)
        calls = operator.calls(inputs)
        for function, args, kwargs in calls[:2]:
            detached = torch.utils._pytree.tree_map(
                lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, (tuple(args), dict(kwargs))
            )
            results: Mapping[str, Any] = opcheck(function, *detached, raise_exception=False)
            for test, result in results.items():
                found[test] = found.get(test) or ("" if result == "SUCCESS" else first_line(result))
        say({"tests": found})

    if operator.packet is None:
        return {}, "not an operator of the dispatcher"
    if not may_fork(device):
        return {}, "this process has used CUDA or started autograd's threads, so opcheck cannot be asked in a fork"
    ended = fork(work, 120)
    if not ended.events:
        return {"test_schema": _told(ended)}, ""
    reason = f"a dispatch mode sees no call of {operator.name}, so there are no arguments to give to it"
    return ended.events[-1]["tests"], reason


def _compare_with_opcheck(findings: Sequence[Finding], tests: Mapping[str, str], reason: str) -> Finding:
    """Note which findings opcheck has, too. If only opcheck sees a fault, that is a finding of its own."""
    question = "Does torch.library.opcheck accept it?"
    if not tests:
        return Finding("opcheck", question, "not applicable", reason)
    failed = sorted(test for test, error in tests.items() if error)
    wrong = [finding for finding in findings if finding.is_wrong]
    for finding in wrong:
        asked = set(CHECKS[finding.check].opcheck).union(*(CHECKS[name].opcheck for name in finding.also))
        finding.is_seen_by_opcheck = bool(failed) if len(wrong) == 1 else not asked.isdisjoint(failed)
    refused = {test for finding in findings if finding.verdict == "refused" for test in CHECKS[finding.check].opcheck}
    verdict = "wrong" if not wrong and set(failed) - refused else "refused" if failed else "right"
    message = "; ".join(f"{test}: {tests[test]}" for test in failed)
    opcheck = Finding("opcheck", question, verdict, message, page="4_gradients")
    opcheck.is_seen_by_opcheck = bool(failed)
    return opcheck
