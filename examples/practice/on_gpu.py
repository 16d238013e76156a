"""Check a kernel on a GPU, too, and time it: against a copy of as many bytes, torch, and the solution."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from grading import Case, NotYet, check_values
from torch import Tensor

from lab import toolchain
from lab.bench import clock


def why_not() -> str:
    """An empty string if kernels can run here, otherwise the reason."""
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    return "" if toolchain.find_nvcc() else toolchain.cuda_cure()


def load(source: Path, launcher: str) -> Callable:
    """Compile an answer with nvcc for the GPU of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernels.so")
        flags = ["-O3", "-std=c++17", "-lineinfo", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
        command = [toolchain.find_nvcc(), *flags, "-o", library, source]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NotYet("compile", f"nvcc refuses {source.name}.", (done.stdout + done.stderr).strip())
        function = ctypes.CDLL(str(library))[launcher]
    function.restype = ctypes.c_char_p
    return function


def launch(launcher: Callable, given: dict[str, Tensor | int]) -> None:
    values = [ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_int64(x) for x in given.values()]
    if error := launcher(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)):
        raise NotYet("launch", f"on the GPU the launcher returned an error: {error.decode()}.")


def run(launcher: Callable, case: Case) -> dict[str, Tensor | int]:
    """Run a case of CUDA tensors and check its values. Returns the arguments."""
    given = case.allocate()
    for name, result in case.results.items():
        if result.initial is None:
            given[name].view(torch.uint8).fill_(0xFF)  # NaN, or -1
    launch(launcher, given)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise NotYet("launch", f"{case.about}: the kernel failed on the GPU: {str(error).splitlines()[0]}.") from None
    check_values(case, given)
    return given


def measure(grader: ModuleType, answer: Path, solution: Path, ready: Callable | None = None) -> dict:
    """Check all sizes on the GPU, then time the large one. Microseconds by name, the bytes and operations it needs.

    ready: the launcher of the answer, if it is compiled already.
    """
    with torch.device("cuda"):
        launchers = {"answer": ready or load(answer, grader.LAUNCHER)}
        launchers["solution"] = load(solution, grader.LAUNCHER) if solution != answer else launchers["answer"]
        for size in grader.SIZES:
            run(launchers["answer"], grader.case(*size))
        case = grader.case(*grader.LARGE)
        given = {name: run(launcher, case) for name, launcher in launchers.items()}
        calls = {name: partial(launch, launchers[name], given[name]) for name in launchers}
        if answer == solution:
            del calls["answer"]
        calls["torch"] = partial(grader.in_torch, **given["solution"])
        if case.bytes:
            source = torch.empty(case.bytes // 2, dtype=torch.uint8)
            calls["copy"] = partial(torch.empty_like(source).copy_, source)
        times = {name: clock.gpu([call]).median_us for name, call in calls.items()}
    return {"about": case.about, "bytes": case.bytes, "flops": case.flops, **times}


def describe(found: dict) -> list[str]:
    """Lines of text for a measurement."""
    us = found["answer"]
    lines = [f"on {torch.cuda.get_device_name()}: right; {found['about']}: {us:.1f} us"]
    if found["flops"]:
        lines[0] += f", {found['flops'] / us * 1e-6:.2f} TFLOP/s"
    else:
        lines[0] += f", {found['bytes'] / us * 1e-3:.0f} GB/s, {found['copy'] / us:.2f} of the speed of a copy"
    lines.append(f"the solution takes {found['solution']:.1f} us, torch {found['torch']:.1f} us")
    return lines
