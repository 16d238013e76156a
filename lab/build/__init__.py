"""Builds of the operator: load("jit") builds what is missing or out of date, loads it, and registers torch.ops.add2."""

from .builder import BINDINGS, COMPILERS, Build, build, has_cuda_code, load
from .toolchain import BuildError

__all__ = ["BINDINGS", "COMPILERS", "Build", "BuildError", "build", "has_cuda_code", "load"]
