"""Builds of the operator: load("jit") builds what is missing or out of date, loads it, and registers torch.ops.add2."""

__all__ = ["BINDINGS", "COMPILERS", "Build", "BuildError", "build", "has_cuda_code", "load"]


def __getattr__(name: str):
    # On first use: builder imports torch, and the doctor needs symptoms.py also where torch is missing or broken.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import builder

    return getattr(builder, name)
