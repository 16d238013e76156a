"""CUDA kernels on a CPU: their values, their faults, their memory traffic. README.md says what it can tell.

from lab import emulator

kernels = emulator.load("transpose.cu")
print(emulator.run(kernels.launch_4_bytes, 1, emulator.out(y), x, 192, 256))
"""

from .build import BuildError, CannotBuild
from .report import Fault, Launch, Line, Report, Unwritten
from .run import Kernels, load, out, run

__all__ = [
    "BuildError",
    "CannotBuild",
    "Fault",
    "Kernels",
    "Launch",
    "Line",
    "Report",
    "Unwritten",
    "load",
    "out",
    "run",
]
