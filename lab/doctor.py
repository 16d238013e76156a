"""Examine this machine: a line for each thing that a build needs, and the cure where it is wrong (exit status 1).

python3 -m lab.doctor
python3 time.py 2>&1 | python3 -m lab.doctor --explain    # the cause of an error message
"""

import argparse
import importlib.metadata
import sys
import tempfile
from pathlib import Path

BROKEN = ""
try:  # all that follows needs torch
    import torch
    from torch.utils import cpp_extension

    from . import toolchain
except Exception as error:  # none is there, or anything can go wrong in a broken one
    BROKEN = f"does not load: {error}. `python3 -m pip install --force-reinstall torch`"


def _torch() -> str:
    toolchain.check_platform()
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        raise RuntimeError(f"{torch.__version__} is too old: `python3 -m pip install --upgrade torch`")
    return f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python {sys.version.split()[0]}"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none is found (or no driver, or a torch without CUDA); everything runs on the CPU"
    torch.ones(1, device="cuda").item()  # RuntimeError, if it cannot be used
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _nvcc() -> str:
    if nvcc := toolchain.find_nvcc():
        found = f"CUDA {toolchain.check_nvcc(nvcc)}, {nvcc} of {toolchain.cuda_root(nvcc)}"
        return f"{found}; compiles for {toolchain.arch_list()}"
    return f"none, so only the CPU part is built: {toolchain.cuda_cure()}"


def _cuda_home() -> str:
    """This project finds the toolkit by itself; a project of your own relies on torch's guess."""
    home, nvcc = cpp_extension.CUDA_HOME, toolchain.find_nvcc()
    if nvcc is None:
        return "not needed without nvcc"
    if not (home and Path(home, "bin/nvcc").exists() and Path(home, "include/cuda_runtime.h").exists()):
        cure = f"`export CUDA_HOME={toolchain.cuda_root(nvcc)}`"
        raise RuntimeError(f"torch takes {home}, which is no toolkit; a project of your own will not link: {cure}")
    if not list(Path(home).glob("lib*/libcudart.so")):
        cure = f"`cd {home}/lib && ln -s libcudart.so.* libcudart.so`"
        raise RuntimeError(f"there is no libcudart.so in {home}; a project of your own will not link: {cure}")
    return home


def _cache() -> str:
    folder = cpp_extension._get_build_directory("add2", verbose=False)
    tempfile.TemporaryFile(dir=folder).close()
    return folder


def examine() -> int:
    """Print a line for each check. Returns the exit status."""
    if BROKEN:
        print(f"WRONG  torch       {BROKEN}")
        return 1
    checks = {"torch": _torch, "GPU": _gpu, "nvcc": _nvcc, "CUDA_HOME": _cuda_home, "C++": toolchain.host_compiler}
    checks |= {tool: lambda tool=tool: toolchain.require(tool) for tool in ("ninja", "cmake")}
    checks |= {"setuptools": lambda: importlib.metadata.version("setuptools"), "cache": _cache}
    checks |= {"nvrtc": lambda: f"--compiler nvrtc: {toolchain.lack_for_nvrtc() or 'works'}"}
    status = 0
    for subject, check in checks.items():
        try:
            print(f"ok     {subject:<11} {check()}")
        except (RuntimeError, OSError, ImportError) as error:
            cure = toolchain.explain(str(error))
            print(f"WRONG  {subject:<11} {error}" + (f"\n{cure}" if cure else ""))
            status = 1
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.doctor", description="Examine this machine.")
    parser.add_argument("--explain", action="store_true", help="read an error message from stdin, and tell its cure")
    if BROKEN or not parser.parse_args().explain:
        return examine()
    verdict = toolchain.explain(sys.stdin.read())
    print(verdict or "No symptom that the doctor knows; docs/troubleshooting.md lists those.")
    return 0 if verdict else 1


if __name__ == "__main__":
    sys.exit(main())
