"""Each failure of docs/troubleshooting.md, produced; and what the user reads then. Also the doctor, sick and well."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.build import toolchain

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("--device", "cpu", "--sizes", "100")
SITE = Path(torch.__file__).parent.parent


@pytest.fixture
def env(tmp_path):
    """An empty cache, and the CPU part alone, which is built in a second."""
    return {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}


@pytest.fixture
def nvcc():
    from lab.build import toolchain

    if torch.version.cuda is None or toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    return toolchain.cuda_root(toolchain.find_nvcc()) / "bin" / "nvcc"


@pytest.fixture
def mounted(tmp_path):
    """Run a command with a small or read-only file system at a folder, in a name space of its own."""

    def mounted(options, *arguments, **env):
        folder = tmp_path / "disk"
        folder.mkdir(exist_ok=True)
        inside = 'mount -t tmpfs -o "$0" tmpfs "$1" && shift && exec "$@"'
        command = [
            "unshare",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            inside,
            options,
            folder,
            sys.executable,
            *arguments,
        ]
        environment = os.environ | env | {"TORCH_EXTENSIONS_DIR": str(folder)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if "mount" in done.stderr.split(":")[0] or "unshare" in done.stderr.split(":")[0]:
            pytest.skip("needs a user name space, to mount a disk in")
        return done

    return mounted


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def explain(run, text, status=0):
    """What the doctor says to an error message on its stdin."""
    command = [sys.executable, "-m", "lab.doctor", "--explain"]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == status
    return done.stdout


def cured(text, cause, cure):
    assert f"Cause: {cause}" in text, text
    assert cure in text.split("Cure: ")[1], text


def library_of(run, root, env):
    code = "from lab import build; print(build.load('jit').library)"
    return Path(run("-c", code, root=root, **env).stdout.strip())


@pytest.mark.parametrize(("build", "program"), [("jit", "time.py"), ("cmake", "train.py")])
def test_undefined_symbol(build, program, project, run, env):
    source = project / "kernel" / "add2_cpu.cpp"
    source.write_text(source.read_text() + '\nextern "C" int no_such_function();\nint used = no_such_function();\n')
    done = run(program, "--compiler", build, "--device", "cpu", root=project, status=1, **env)
    assert "no_such_function" in done.stderr
    cured(done.stderr, "the library was built against another torch", "--rebuild")


def test_no_kernel_image(run, tmp_path):
    """Compiled for another GPU than the one that is there."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU")
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "TORCH_CUDA_ARCH_LIST": "7.5"}
    done = run("time.py", "--sizes", "100", status=1, **env)
    cured(done.stderr, "the library has no code for this GPU", "unset TORCH_CUDA_ARCH_LIST")


def test_no_cuda_code(run):
    """On a GPU machine test_cpu_part_alone of test_builds.py meets it; this is the operator's own message."""
    message = re.search(r'"(this library was built without CUDA code)', (ROOT / "kernel" / "add2.cpp").read_text())[1]
    cured(explain(run, f"RuntimeError: add2: {message}"), "the library has no CUDA part", "--rebuild")


def test_library_before_torch(run, env):
    """libc10.so or libtorch.so is not found where torch has not been imported first."""
    library = library_of(run, ROOT, env)
    code = f"import ctypes; ctypes.CDLL({str(library)!r})"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ".so: cannot open shared object file" in failed.stderr
    cured(explain(run, failed.stderr), "the library was loaded before torch", "`import torch` first")


@pytest.mark.thorough
def test_damaged_library(run, env):
    """A shorter one is seen, and built again; one that looks the same from outside does not load, and says so."""
    library = library_of(run, ROOT, env)
    with library.open("r+b") as file:
        file.truncate(1000)
    assert "built and loaded" in run("time.py", *QUICK, **env).stdout
    status = library.stat()
    library.write_bytes(b"?" * status.st_size)
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = run("time.py", *QUICK, status=1, **env)
    cured(done.stderr, "the library is damaged", "--rebuild")
    assert "built and loaded" in run("time.py", "--rebuild", *QUICK, **env).stdout


def test_no_ninja(run, env, tmp_path):
    """Neither on PATH nor in Python's environment: a Python outside of it, and a PATH with other tools alone."""
    python = Path(sys.base_prefix, "bin", "python3")
    if (python.parent / "ninja").exists() and python.parent != Path("/usr/bin"):
        pytest.skip("ninja is installed beside Python")
    (tmp_path / "hidden" / "ninja").mkdir(parents=True)
    (tmp_path / "hidden" / "ninja" / "__init__.py").touch()
    (tmp_path / "bin").mkdir()
    for tool in ("c++", "cmake", "as", "ld"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    environment = os.environ | env | {"PATH": str(tmp_path / "bin"), "PYTHONPATH": f"{tmp_path / 'hidden'}:{SITE}"}

    def start(*arguments):
        command = [python, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done

    done = start("time.py", *QUICK)
    assert "ninja is not installed" in done.stderr
    assert "pip install ninja" in done.stderr
    assert finding(start("-m", "lab.doctor", "--json").stdout, "ninja") == ("wrong", "python3 -m pip install ninja")
    cured(explain(run, "RuntimeError: Ninja is required to load C++ extensions"), "the jit build runs", "install ninja")


@pytest.mark.thorough
def test_lock_held(run, env, tmp_path):
    """Another process builds: we say for whom we wait, and the doctor says who holds it."""
    library = library_of(run, ROOT, env)
    lock = library.parent.with_suffix(".lock")
    shutil.rmtree(library.parent)
    code = "import sys, time; from lab import cache\nfrom pathlib import Path\nwith cache.locked(Path(sys.argv[1])):"
    code += "\n    print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, lock]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    waiting = subprocess.Popen(
        [sys.executable, "time.py", *QUICK], cwd=ROOT, env=os.environ | env, stderr=subprocess.PIPE, text=True
    )
    assert f"waiting for process {holder.pid} and its compilers" in waiting.stderr.readline()
    state, cure = finding(run("-m", "lab.doctor", "--json", **env).stdout, "locks")
    assert state == "note"
    assert "end that process" in cure
    holder.kill()
    waiting.communicate(timeout=120)
    assert waiting.returncode == 0


def test_disk_full(mounted):
    done = mounted("size=200k", "time.py", *QUICK, ADD2_WITH_CUDA="0", TMPDIR="/tmp")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    cured(done.stderr, "the disk is full", "lab.build clean")


def test_read_only_cache(mounted):
    done = mounted("ro", "time.py", *QUICK, ADD2_WITH_CUDA="0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    cured(done.stderr, "the build cannot write there", "TORCH_EXTENSIONS_DIR")
    done = mounted("ro", "-m", "lab.doctor", "--json")
    state, cure = finding(done.stdout, "cache")
    assert state == "wrong"
    assert "TORCH_EXTENSIONS_DIR" in cure


def test_cache_that_is_no_folder(run, env, tmp_path):
    (tmp_path / "cache").write_text("")
    done = run("time.py", *QUICK, status=1, **env)
    cured(done.stderr, "the build cannot write there", "TORCH_EXTENSIONS_DIR")


def test_no_python_headers(run, env, tmp_path):
    """A compiler that does not see Python.h; the dispatcher's build does not need it."""
    wrapper = (
        'for x; do shift; case "$x" in *include/python3*) x=-I/nowhere;; esac; set -- "$@" "$x"; done; exec c++ "$@"\n'
    )
    compiler = script(tmp_path / "bin" / "cxx", wrapper)
    run("time.py", *QUICK, CXX=str(compiler), **env)
    done = run("time.py", *QUICK, "--binding", "pybind11", status=1, CXX=str(compiler), **env)
    cured(done.stderr, "the headers of this Python are not installed", "-dev")


def test_nvcc_of_another_cuda(run, nvcc, tmp_path):
    fake = script(tmp_path / "cuda" / "bin" / "nvcc", 'echo "Cuda compilation tools, release 9.2, V9.2.88"\n')
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CUDA_HOME": str(fake.parent.parent)}
    done = run("time.py", *QUICK, status=1, **env)
    assert "is of CUDA 9.2" in done.stderr
    assert f"torch {torch.__version__} was built with CUDA {torch.version.cuda}" in done.stderr
    assert f'"nvidia-cuda-nvcc=={torch.version.cuda}.*"' in done.stderr or torch.version.cuda < "13"
    state, cure = finding(run("-m", "lab.doctor", "--json", status=1, **env).stdout, "nvcc")
    assert state == "wrong"
    assert "CUDA_HOME" in cure


def test_toolkit_with_a_space_in_its_path(run, nvcc, tmp_path):
    version = (
        f'[ "$1" = --version ] && echo "release {torch.version.cuda}, V"; echo "#\\$ TOP=$(dirname "$0")/.." >&2\n'
    )
    fake = script(tmp_path / "my cuda" / "bin" / "nvcc", version)
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CUDA_HOME": str(fake.parent.parent)}
    assert "a folder with a space in its path" in run("time.py", *QUICK, status=1, **env).stderr


def test_gpu_that_nvcc_does_not_know(run, nvcc, tmp_path):
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "TORCH_CUDA_ARCH_LIST": "99.0"}
    done = run("time.py", *QUICK, status=1, **env)
    assert "does not know GPUs of compute capability 99.0" in done.stderr
    assert "+PTX" in done.stderr


def test_compiler_that_nvcc_refuses(run, nvcc, tmp_path):
    """nvcc's own headers refuse a GCC that is too new: here one that says so of itself."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "NVCC_PREPEND_FLAGS": "-D__GNUC__=99"}
    done = run("time.py", *QUICK, status=1, **env)
    assert "unsupported GNU version" in done.stderr
    cured(done.stderr, "nvcc refuses the C++ compiler", "CXX=")


def test_out_of_memory_while_compiling(run, env, tmp_path):
    says = (
        'case "$*" in *" -c "*) echo "c++: fatal error: Killed signal terminated program cc1plus" >&2; exit 1;; esac\n'
    )
    compiler = script(tmp_path / "bin" / "cxx", says + 'exec c++ "$@"\n')
    done = run("time.py", *QUICK, status=1, CXX=str(compiler), **env)
    cured(done.stderr, "the machine ran out of memory", "MAX_JOBS=1")


@pytest.mark.parametrize("build", ["jit", "setup", "cmake"])
def test_nvcc_from_pypi(build, project, run, nvcc, tmp_path, tmp_path_factory):
    """No toolkit is installed; the command that the message names installs one that does."""
    from lab.build import toolchain

    command = toolchain.nvcc_cure().split("`")[1]
    assert command.startswith("python3 -m pip install ")
    packages = [word.strip('"') for word in command.split()[4:]]
    site = tmp_path_factory.getbasetemp() / "nvcc"
    if not site.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, *packages]
        if subprocess.run(pip, capture_output=True, check=False).returncode:
            pytest.skip("needs a package index")
    home = next(site.glob("nvidia/cu*"))
    code = f"""
import shutil
from pathlib import Path
from lab.build import toolchain
exists = Path.exists
Path.exists = lambda path: not str(path).startswith("/usr/local/cuda") and exists(path)
which = shutil.which
shutil.which = lambda tool, **how: None if tool == "nvcc" else which(tool, **how)
assert str(toolchain.find_nvcc()) == {str(home / "bin" / "nvcc")!r}, toolchain.find_nvcc()
from lab import build
print(build.has_cuda_code(build.load({build!r}).library))
"""
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "PYTHONPATH": f"{site}:{SITE}"}
    done = run("-c", code, root=project, drop=("CUDA_HOME", "CUDA_PATH"), **environment)
    assert done.stdout == "True\n"


def test_cuda_mismatch_that_torch_finds(project, run, nvcc, tmp_path):
    """setup.py called by hand, as pip does it: there torch compares the versions itself."""
    fake = script(tmp_path / "cuda" / "bin" / "nvcc", 'echo "Cuda compilation tools, release 9.2, V9.2.88"\n')
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    environment = os.environ | {"CUDA_HOME": str(fake.parent.parent)}
    failed = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    cured(explain(run, failed.stderr), "nvcc and torch are of different CUDA versions", "lab.doctor")


def test_no_torch_headers(run):
    command = ["c++", "-Iinclude", "-c", "kernel/add2.cpp", "-o", "/dev/null"]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    cured(explain(run, failed.stderr), "the compiler does not see torch's headers", "pip install --upgrade torch")


def test_the_page_has_every_symptom():
    """docs/troubleshooting.md: the cause of each in the same words, and tests that exist."""
    from lab.build.symptoms import SYMPTOMS

    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert [symptom.cause for symptom in SYMPTOMS if symptom.cause not in page] == []
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) > len(SYMPTOMS) / 2
    assert [name for name in named if f"def {name}(" not in tests] == []


def finding(output, subject):
    [found] = [row for row in json.loads(output) if row["subject"] == subject]
    return found["state"], found["cure"]


def test_doctor(run):
    """On this machine, where the other tests build everything, nothing is wrong."""
    done = run("-m", "lab.doctor")
    assert "Nothing is wrong." in done.stdout
    assert "--compiler jit    works: " in done.stdout
    assert ("--compiler nvrtc  works: GPU" in done.stdout) == (toolchain.lack_for_nvrtc() is None)
    for subject in ("Python", "torch", "GPU", "nvcc", "C++", "ninja", "cmake", "cache", "locks", "libraries", "ABI"):
        assert f" {subject} " in done.stdout
    assert len(done.stdout.splitlines()) <= 24
    assert {row["state"] for row in json.loads(run("-m", "lab.doctor", "--json").stdout)} <= {"ok", "note"}


def test_doctor_without_torch(run):
    """-S: no site-packages."""
    output = run("-S", "-m", "lab.doctor", "--json", status=1, drop=("PYTHONPATH",)).stdout
    assert finding(output, "torch") == ("wrong", "python3 -m pip install torch")


def test_doctor_with_a_broken_torch(run, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libc10.so: cannot open shared object file')")
    output = run("-m", "lab.doctor", "--json", status=1, PYTHONPATH=str(tmp_path)).stdout
    assert finding(output, "torch")[0] == "wrong"
    assert "force-reinstall" in finding(output, "torch")[1]


def test_doctor_finds_another_torch_in_the_way(run, tmp_path):
    (tmp_path / "libc10.so").touch()
    env = {"LD_LIBRARY_PATH": f"{Path(torch.__file__).parent / 'lib'}:{tmp_path}"}
    assert finding(run("-m", "lab.doctor", "--json", status=1, **env).stdout, "libraries")[0] == "wrong"


def test_unknown_error(run):
    assert "No symptom" in explain(run, "segmentation fault", status=1)
