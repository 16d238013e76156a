"""Examine this machine: a line for each thing that a build needs, and the cure where it is wrong (exit status 1).

python3 -m lab.doctor
python3 time.py 2>&1 | python3 -m lab.doctor --explain    # the cause of an error message
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile

from . import cli

BROKEN = ""
try:  # all that follows needs torch
    import torch

    from .build import cache, symptoms, toolchain
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


def _setuptools() -> str:
    found = importlib.metadata.version("setuptools") if importlib.util.find_spec("setuptools") else "0 (not installed)"
    if int(re.match(r"\d+", found)[0]) < 77:
        raise RuntimeError(f'{found}: `python3 -m pip install "setuptools>=77"`')
    return found


def _cache() -> str:
    folder, cure = cache.folder(), "Name another folder: `export TORCH_EXTENSIONS_DIR=FOLDER`"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise RuntimeError(f"{folder}: {error.strerror}. {cure}") from error
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise RuntimeError(f"{folder} is on a disk from which no library can be loaded (mounted with noexec). {cure}")
    return str(folder)


def examine() -> int:
    """Print a line for each check. Returns the exit status."""
    if BROKEN:
        print(f"WRONG  torch       {BROKEN}")
        return 1
    checks = {"torch": _torch, "GPU": _gpu, "nvcc": _nvcc, "C++": lambda: toolchain.host_compiler()}
    checks |= {tool: lambda tool=tool: toolchain.require(tool) for tool in ("ninja", "cmake")}
    checks |= {"setuptools": _setuptools, "cache": _cache}
    checks |= {"nvrtc": lambda: f"--compiler nvrtc: {toolchain.lack_for_nvrtc() or 'works'}"}
    status = 0
    for subject, check in checks.items():
        try:
            print(f"ok     {subject:<11} {check()}")
        except (RuntimeError, OSError) as error:
            print(f"WRONG  {subject:<11} {error}")
            status = 1
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.doctor", description="Examine this machine.")
    parser.add_argument("--explain", action="store_true", help="read an error message from stdin, and tell its cure")
    args = parser.parse_args()
    if BROKEN or not args.explain:
        return examine()
    if sys.stdin is None:  # closed: `<&-`
        parser.error("--explain reads the error message from stdin, which is closed")
    verdict = symptoms.explain(sys.stdin.read())
    print(verdict or "No symptom that the doctor knows; docs/troubleshooting.md lists those.")
    return 0 if verdict else 1


if __name__ == "__main__":
    cli.start(needs_torch=False)
    sys.exit(cli.run(main))
