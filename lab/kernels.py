"""Run the launchers of a .cu file with tensors: on a GPU, compiled by nvcc, or in the emulator, on a CPU.

A launcher is a C function whose last parameter is a stream, and which returns NULL or an error message. The programs of
the lessons load() one file each; where there is no GPU they take the emulator, and print counts in place of times.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from . import emulator, toolchain


def add_option(parser: argparse.ArgumentParser) -> None:
    """--emulate: what load() takes."""
    text = "run the kernels in the emulator, as where there is no GPU: values and memory traffic, no times"
    parser.add_argument("--emulate", action="store_true", help=text)


class OnGpu:
    """A library of launchers for the current GPU."""

    device = "cuda"

    def __init__(self, library: ctypes.CDLL):
        self.library = library

    def unwritten(self, x: Tensor) -> Tensor:
        """x, as an argument of launch()."""
        return x

    def launch(self, name: str, *arguments: object) -> None:
        """Call a launcher with tensors and integers, on torch's current stream.

        Its error message becomes a RuntimeError.
        """
        function = self.library[name]
        function.restype = ctypes.c_char_p
        values = [ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else as_int64(x) for x in arguments]
        if error := function(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)):
            raise RuntimeError(error.decode())


class InEmulator:
    """The same launchers, run by lab/emulator on CPU tensors."""

    device = "cpu"

    def __init__(self, kernels: emulator.Kernels):
        self.kernels = kernels
        self.report = emulator.Report()  # of the last call

    def unwritten(self, x: Tensor) -> object:
        """x, as an argument of launch() whose elements count as not yet written."""
        return emulator.out(x)

    def launch(self, name: str, *arguments: object, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Call a launcher, and keep its report. Its error message becomes a RuntimeError.

        tensors: more memory that the kernels use, where an argument is a struct of pointers.
        """
        self.report = emulator.run(getattr(self.kernels, name), *arguments, tensors=tensors or {})
        if self.report.error:
            raise RuntimeError(self.report.error)

    def counts(self) -> dict[str, int]:
        """Memory traffic of the last call: sectors of 32 bytes, and bank conflicts of shared memory.

        fewest: as many sectors as hold what each instruction of a warp asked for. Copies by cp.async count as loads.
        """
        launches = self.report.launches
        return {
            "sectors_loaded": sum(each.load_sectors + each.copy_sectors for each in launches),
            "sectors_stored": sum(each.store_sectors for each in launches),
            "fewest": sum(
                each.load_sectors_ideal + each.copy_sectors_ideal + each.store_sectors_ideal for each in launches
            ),
            "bank_conflicts": sum(each.bank_conflicts for each in launches),
        }


Launchers = OnGpu | InEmulator


def as_int64(x: object) -> ctypes.c_int64:
    if not isinstance(x, int):
        raise TypeError(f"a launcher takes tensors and integers, found {type(x).__name__}")
    return ctypes.c_int64(x)


def architecture() -> str:
    """For nvcc: the GPU of this machine, or else sm_90."""
    return "native" if torch.cuda.is_available() else "sm_90"


def compile_source(source: Path, library: Path, *flags: str) -> None:
    """Compile a .cu file for architecture(). A toolchain.Failure if there is no nvcc, or if it refuses the file."""
    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        raise toolchain.Failure(f"{source.name} is not compiled. {toolchain.cuda_cure()}")
    command: list[str | Path] = [nvcc, *flags, f"-arch={architecture()}", "-shared", "-Xcompiler=-fPIC"]
    command += [f"-L{toolchain.cuda_root(nvcc)}/lib"]  # the nvcc of PyPI looks only in lib64
    if subprocess.run([*command, "-o", library, source], env=os.environ | {"PATH": toolchain.tool_path()}).returncode:
        cure = "docs/troubleshooting.md lists messages with their cures"
        raise toolchain.Failure(f"{source.name} is not compiled: nvcc's errors stand above; {cure}")


def load(source: Path, *flags: str, emulate: bool = False) -> Launchers:
    """Compile a .cu file for the GPU of this machine; for the emulator where there is none, or if it is asked for.

    Ends the program with one line, or with the compiler's errors, if that fails.
    """
    if torch.cuda.is_available() and not emulate:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "kernels.so")
            try:
                compile_source(source, library, "-O3", *flags)
            except toolchain.Failure as failure:
                sys.exit(f"{failure} (--emulate needs no nvcc.)")
            return OnGpu(ctypes.CDLL(str(library)))
    why = "--emulate" if torch.cuda.is_available() else "no GPU"
    print(f"{source.name}: {why}, so its kernels run in the emulator: values and memory traffic, no times", flush=True)
    try:
        return InEmulator(emulator.load(source, flags))
    except emulator.BuildError as error:
        sys.exit(f"{source.name} is not compiled for the emulator:\n{error}")


def traffic(rows: dict[str, dict[str, int]]) -> str:
    """A table of counts() by kernel."""
    width = max(map(len, rows))
    lines = [f"{'':{width}}{'loaded':>12}{'stored':>12}{'fewest':>12}{'conflicts':>12}   (sectors of 32 bytes)"]
    for name, counts in rows.items():
        lines.append(f"{name:{width}}" + "".join(f"{x:12,}" for x in counts.values()))
    return "\n".join(lines)


def expect_no_faults(launchers: InEmulator, name: str) -> None:
    """End the program with the report if the last call had a fault."""
    if launchers.report.faults or launchers.report.unwritten:
        sys.exit(f"{name} has a fault:\n{launchers.report}")


def count_rungs(
    launchers: InEmulator, rungs: Mapping[int, str], call: Callable[[int], Tensor], expected: Tensor, error: float
) -> Iterator[dict]:
    """Run the rungs of a ladder in the emulator; yields the name and the counts() of each, and prints them as a table.

    call: a rung to its result. Ends the program if a result differs from `expected` by more than `error` of its norm,
    or if a rung has a fault. A rung that does not run there is left out, with its reason.
    """
    rows = {}
    for rung, name in rungs.items():
        try:
            found = call(rung)
        except RuntimeError as reason:
            print(f"{name} is left out: {reason}")
            continue
        difference = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
        if not difference <= error:
            sys.exit(f"{name} is wrong: the error is {difference:.2%}, expected {error:.2%} at most")
        expect_no_faults(launchers, name)
        rows[f"{rung}. {name}"] = launchers.counts()
        yield {"rung": name} | launchers.counts()
    print(f"all rungs that run here are right\n{traffic(rows)}", flush=True)
