"""Examine this machine: one line for each thing that a build needs, and the cure where it is wrong.

    python3 -m lab.doctor
    python3 time.py 2>&1 | python3 -m lab.doctor --explain    # what an error message means

Exit status 1 if a build cannot work. It needs nothing but Python: torch may be missing or broken.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from .build import symptoms

OK, NOTE, WRONG = "ok", "note", "wrong"
_MARKS = {OK: "✓", NOTE: "-", WRONG: "✗"}
_PLAIN = {OK: "+", NOTE: "-", WRONG: "x"}  # for a terminal or a file that takes ASCII only


@dataclass
class Finding:
    """One line. state: "ok"; "note", where something is missing that only some need; or "wrong", with the cure."""

    subject: str
    state: str
    text: str
    cure: str = ""


def examine() -> list[Finding]:
    """Look at everything; where torch is missing, at what needs no torch."""
    found = [_python(), _torch()]
    without_torch = [_headers, _setuptools]
    return found + [check() for check in (CHECKS if found[-1].state == OK else without_torch)]


def _python() -> Finding:
    return Finding("Python", OK, f"{sys.version.split()[0]}, {sys.executable}")


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", WRONG, "not installed", "python3 -m pip install torch")
    try:
        import torch
    except Exception as error:  # anything can go wrong in a broken one
        reason = f"does not load: {type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else repr(error)
        return Finding("torch", WRONG, reason, "python3 -m pip install --force-reinstall torch")
    version = getattr(torch, "__version__", "unknown")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return Finding("torch", WRONG, "is no torch", "python3 -m pip install --force-reinstall torch")
    if (int(numbers[1]), int(numbers[2])) < (2, 10):
        return Finding("torch", WRONG, f"{version}, which is too old", "python3 -m pip install --upgrade torch")
    from .build import toolchain

    try:
        toolchain.check_platform()
    except toolchain.BuildError as error:
        return Finding("torch", WRONG, *_split(error))
    return Finding("torch", OK, f"{version}, CUDA {torch.version.cuda or 'none'}")


def _gpus() -> Finding:
    import torch

    if torch.version.cuda is None:
        return Finding("GPU", NOTE, "not used: this torch has no CUDA", "python3 -m pip install torch")
    if not torch.cuda.is_available():
        return Finding("GPU", NOTE, "none is found (or no driver); everything runs on the CPU")
    names = []
    for i in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(i)
        names.append(f"{torch.cuda.get_device_name(i)} (sm_{major}{minor})")
    return Finding("GPU", OK, f"{', '.join(names)}; driver {_first_line('nvidia-smi', _DRIVER) or 'unknown'}")


_SETUPTOOLS = 'python3 -m pip install "setuptools>=77"'
_DRIVER = ("--query-gpu=driver_version", "--format=csv,noheader")


def _nvcc() -> Finding:
    from .build import toolchain

    try:
        nvcc = toolchain.find_nvcc()
        if nvcc is None:
            return Finding("nvcc", NOTE, "none: only the CPU part is built", toolchain.cuda_cure())
        toolchain.check_nvcc()
        major, minor = toolchain.nvcc_release(nvcc)
    except toolchain.BuildError as error:
        return Finding("nvcc", WRONG, *_split(error))
    root = toolchain.cuda_root(nvcc)
    where = f"{nvcc}" if nvcc.resolve().is_relative_to(root) else f"{nvcc} (its toolkit: {root})"
    return Finding("nvcc", OK, f"CUDA {major}.{minor}, {where}; compiles for {toolchain.arch_list() or 'PTX of sm_75'}")


def _nvrtc() -> Finding:
    from importlib.metadata import version

    from .build import toolchain

    if reason := toolchain.lack_for_nvrtc():
        found, _, cure = reason.partition(". ")
        return Finding("nvrtc", NOTE, f"--compiler nvrtc cannot run: {found}", cure)
    return Finding("nvrtc", OK, f"cuda-core {version('cuda-core')}")


def _host_compiler() -> Finding:
    from .build import toolchain

    try:
        compiler = toolchain.host_compiler()
    except toolchain.BuildError as error:
        return Finding("C++", WRONG, *_split(error))
    return Finding("C++", OK, f"{_first_line(compiler, ('--version',))}, {compiler}")


def _settings() -> Finding:
    """MAX_JOBS, and the characters in the paths of this project and of torch."""
    from .build import cache, toolchain

    try:
        toolchain.check_folders(cache.ROOT)
        jobs = toolchain.max_jobs()
    except toolchain.BuildError as error:
        return Finding("settings", WRONG, *_split(error))
    return Finding("settings", OK, f"{jobs} files at once; the project is in {cache.ROOT}")


def _ninja() -> Finding:
    return _tool("ninja", "python3 -m pip install ninja")


def _cmake() -> Finding:
    found = _tool("cmake", "python3 -m pip install cmake")
    version = re.search(r"(\d+)\.(\d+)", found.text)
    if found.state == OK and version and (int(version[1]), int(version[2])) < (3, 25):
        return Finding("cmake", WRONG, f"{found.text}: too old, 3.25 is needed", "python3 -m pip install cmake")
    return found


def _tool(name: str, cure: str) -> Finding:
    from .build import toolchain

    path = shutil.which(name, path=toolchain.tool_path())
    if path is None:
        return Finding(name, WRONG, "not installed", cure)
    version = _first_line(path, ("--version",))
    return Finding(name, OK, f"{version}, {path}") if version else Finding(name, WRONG, f"{path} does not run", cure)


def _setuptools() -> Finding:
    if importlib.util.find_spec("setuptools") is None:
        return Finding("setuptools", WRONG, "not installed", _SETUPTOOLS)
    from importlib.metadata import version

    found = version("setuptools")
    if int(found.split(".")[0]) < 77:
        return Finding("setuptools", WRONG, f"{found}, too old for pyproject.toml", _SETUPTOOLS)
    return Finding("setuptools", OK, found)


def _headers() -> Finding:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if header.exists():
        return Finding("Python.h", OK, str(header))
    return Finding("Python.h", NOTE, "missing; only --binding pybind11 needs it", _cure("Python.h: No such file"))


def _cache() -> Finding:
    from .build import cache, toolchain

    try:
        folder = cache.jit_folder()
    except toolchain.BuildError as error:
        return Finding("cache", WRONG, *_split(error))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"add2-doctor-{os.getpid()}"
        probe.write_bytes(b"x" * 65536)
        probe.unlink()
    except OSError as error:
        what = f"{folder}: {error.strerror}"
        return Finding("cache", WRONG, what, _cure(what))
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        what = f"{folder} is on a disk from which no library can be loaded (mounted with noexec)"
        return Finding("cache", WRONG, what, _cure("failed to map segment from shared object"))
    builds = sum((folder / "stamp.json").exists() for folder in cache.jit_builds())
    free = shutil.disk_usage(folder).free / 1e9
    return Finding("cache", OK, f"{folder}: {builds} builds by jit, {free:.1f} GB free")


def _locks() -> Finding:
    from .build import cache

    if held := cache.held_locks():
        who = "; ".join(f"{path} by {cache.holder(path)}" for path in held)
        return Finding("locks", NOTE, f"held: {who}", "wait for it, or end that process and its compilers")
    return Finding("locks", OK, "none is held")


def _libraries() -> Finding:
    """Import order: add2's library finds torch's because `import torch` comes first, unless others are in the way."""
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    strangers = [str(path) for folder in folders for path in folder.glob("libc10.so")]
    import torch

    own = Path(torch.__file__).parent / "lib"
    strangers = [path for path in strangers if Path(path).resolve().parent != own.resolve()]
    if strangers:
        return Finding(
            "libraries", WRONG, f"LD_LIBRARY_PATH has another torch: {strangers[0]}", "unset LD_LIBRARY_PATH"
        )
    return Finding("libraries", OK, f"torch's, in {own}; `import torch` comes before add2's, as `import add2` does it")


def _abi() -> Finding:
    import torch

    abi = int(torch.compiled_with_cxx11_abi())
    return Finding("ABI", OK, f"C++11 ABI {abi}; the dispatcher's library needs only torch's stable ABI of 2.10")


# In the order in which they are printed. A build that needs another tool adds its function here.
CHECKS: list[Callable[[], Finding]] = [
    _gpus,
    _nvcc,
    _nvrtc,
    _host_compiler,
    _settings,
    _ninja,
    _cmake,
    _headers,
    _setuptools,
]
CHECKS += [_cache, _locks, _libraries, _abi]


def _first_line(program: str, arguments: tuple[str, ...]) -> str:
    try:
        output = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(output.splitlines()), "").strip()


def _cure(message: str) -> str:
    symptom = symptoms.find(message)
    return symptom.cure if symptom else ""


def _split(error: Exception) -> tuple[str, str]:
    """A BuildError's first sentence is what was found; the rest is the cure."""
    text, _, cure = str(error).partition(". ")
    return text, cure


NEEDS = {  # of each build, by the findings' subjects; without nvcc the first three have the CPU part only
    "jit": ("torch", "C++", "settings", "ninja", "cache"),
    "setup": ("torch", "C++", "settings", "ninja", "setuptools"),
    "cmake": ("torch", "C++", "settings", "cmake"),
    "nvrtc": ("torch", "nvrtc"),
}


def builds(found: list[Finding]) -> list[str]:
    """A line for each build: whether this machine can do it, and if not, for want of what."""
    states = {finding.subject: finding.state for finding in found}
    lines = []
    for name, needs in NEEDS.items():
        lacking = [subject for subject in needs if states.get(subject) != OK]
        lacking += ["nvcc"] * (name != "nvrtc" and states.get("nvcc") == WRONG)
        part = "GPU and CPU" if name != "nvrtc" and states.get("nvcc") == OK else "GPU" if name == "nvrtc" else "CPU"
        lines.append(
            f"--compiler {name:<6} " + (f"cannot run: see {', '.join(lacking)}" if lacking else f"works: {part}")
        )
    return lines


def report(found: list[Finding], marks: dict[str, str] = _MARKS) -> str:
    lines = []
    for finding in found:
        lines.append(f"{marks[finding.state]} {finding.subject:<11} {finding.text}")
        if finding.cure:
            lines.append(f"  {'':<11} -> {finding.cure}")
    wrong = sum(finding.state == WRONG for finding in found)
    lines.append(f"{wrong} of these must be mended." if wrong else "Nothing is wrong.")
    lines += builds(found)
    return "\n".join(lines)


def main() -> int:
    about = "Examine this machine, and name the cure of what is wrong."
    parser = argparse.ArgumentParser(prog="python3 -m lab.doctor", description=about)
    parser.add_argument("--json", action="store_true", help="the same as JSON on stdout")
    parser.add_argument("--explain", action="store_true", help="read an error message from stdin, and tell its cure")
    args = parser.parse_args()
    if args.explain:
        if sys.stdin is None:  # closed: `<&-`
            parser.error("--explain reads the error message from stdin, which is closed")
        verdict = symptoms.explain(sys.stdin.read())
        print(verdict or "No symptom that the doctor knows; docs/troubleshooting.md lists those.")
        return 0 if verdict else 1
    found = examine()
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    text = report(found, _PLAIN if ascii_only else _MARKS)
    if ascii_only:  # what a path has in it
        text = text.encode("ascii", "backslashreplace").decode()
    print(json.dumps([asdict(finding) for finding in found], indent=1) if args.json else text)
    return int(any(finding.state == WRONG for finding in found))


if __name__ == "__main__":
    sys.exit(main())
