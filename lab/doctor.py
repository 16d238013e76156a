"""Examine this machine: one line for each thing that a build needs, and the cure where it is wrong.

    python3 -m lab.doctor
    python3 time.py 2>&1 | python3 -m lab.doctor --explain    # the cause of an error message

Exit status 1 if something is wrong.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable


def _torch() -> str:
    """Every other check needs it."""
    try:
        import torch

        from .build import toolchain
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{error}: `python3 -m pip install torch`") from error
    except Exception as error:  # anything can go wrong in a broken one
        raise RuntimeError(f"does not load: {error}. `python3 -m pip install --force-reinstall torch`") from error
    toolchain.check_platform()
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        raise RuntimeError(f"{torch.__version__} is too old: `python3 -m pip install --upgrade torch`")
    return f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python {sys.version.split()[0]}"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none is found (or no driver, or a torch without CUDA); everything runs on the CPU"
    try:
        torch.ones(1, device="cuda").item()
    except RuntimeError as error:
        raise RuntimeError(f"cannot be used: {error}") from error
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _nvcc() -> str:
    from .build import toolchain

    if (nvcc := toolchain.find_nvcc()) is None:
        return f"none, so only the CPU part is built: {toolchain.cuda_cure()}"
    toolchain.check_nvcc()
    gpus = toolchain.arch_list() or "PTX of sm_75"
    return f"CUDA {toolchain.nvcc_release(nvcc)}, {nvcc} of {toolchain.cuda_root(nvcc)}; compiles for {gpus}"


def _setuptools() -> str:
    found = importlib.util.find_spec("setuptools") and importlib.metadata.version("setuptools")
    if not found or int(found.split(".")[0]) < 77:
        raise RuntimeError(f'{found or "not installed"}: `python3 -m pip install "setuptools>=77"`')
    return found


def _cache() -> str:
    from .build import cache

    folder, cure = cache.folder(), "Name another folder: `export TORCH_EXTENSIONS_DIR=FOLDER`"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise RuntimeError(f"{folder}: {error.strerror}. {cure}") from error
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise RuntimeError(f"{folder} is on a disk from which no library can be loaded (mounted with noexec). {cure}")
    return str(folder)


def _print(subject: str, check: Callable[[], str]) -> bool:
    """Print the line of a check. Returns whether all is well."""
    try:
        print(f"ok     {subject:<11} {check()}")
        return True
    except RuntimeError as error:
        print(f"WRONG  {subject:<11} {error}")
        return False


def examine() -> int:
    """Print a line for each check. Returns the exit status."""
    if not _print("torch", _torch):
        return 1
    from .build import toolchain

    checks = {"GPU": _gpu, "nvcc": _nvcc, "C++": toolchain.host_compiler, "ninja": lambda: toolchain.require("ninja")}
    checks |= {"cmake": lambda: toolchain.require("cmake"), "setuptools": _setuptools, "cache": _cache}
    lack = toolchain.lack_for_nvrtc()
    checks["nvrtc"] = lambda: f"--compiler nvrtc cannot run: {lack}" if lack else "--compiler nvrtc works"
    return int(not all([_print(subject, check) for subject, check in checks.items()]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.doctor", description="Examine this machine.")
    parser.add_argument("--explain", action="store_true", help="read an error message from stdin, and tell its cure")
    args = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")  # paths, where only ASCII can be printed
    if not args.explain:
        return examine()
    if sys.stdin is None:  # closed: `<&-`
        parser.error("--explain reads the error message from stdin, which is closed")
    from .build import symptoms

    verdict = symptoms.explain(sys.stdin.read())
    print(verdict or "No symptom that the doctor knows; docs/troubleshooting.md lists those.")
    return 0 if verdict else 1


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except OSError as error:
        print(f"doctor: error: cannot write: {error.strerror}", file=sys.stderr)
        os._exit(1)  # sys.exit() would try once more to write what is left
    sys.exit(status)
