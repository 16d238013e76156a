"""Each failure of docs/troubleshooting.md, produced; and what the user reads then. Also the doctor, sick and well.

Failures of builds are produced by one process in one copy of the project, and asked for one by one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.build import cache, symptoms, toolchain

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("--device", "cpu", "--sizes", "100")
SITE = Path(torch.__file__).parent.parent


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def cured(text, cause, cure):
    assert f"Cause: {cause}" in text, text
    assert cure in text.split("Cure: ")[1], text


def row(output, subject):
    """The doctor's line on a subject."""
    [found] = [line for line in output.splitlines() if line.split()[1] == subject]
    return found


FAILURES = """
import json, os, sys, torch
from pathlib import Path
from lab import build
from lab.build import toolchain

folder = Path(sys.argv[1])
source = Path("kernel/add2_cpu.cpp")
plain = source.read_text()
found = {}

def fail(name, compiler="jit", **env):
    # In a child, which may load what it likes.
    out, to_parent = os.pipe()
    if os.fork() == 0:
        os.environ.update(env)
        toolchain.find_nvcc.cache_clear()
        text = ""
        try: text = str(build.load(compiler).library)
        except build.Failure as error: text = str(error)
        finally:
            os.write(to_parent, text.encode())
            os._exit(0)
    os.close(to_parent)
    os.wait()
    with os.fdopen(out) as file: found[name] = file.read()

source.write_text(plain + 'extern "C" int no_such_function();\\nint used = no_such_function();\\n')
for compiler in ("jit", "cmake"): fail(f"undefined {compiler}", compiler)
source.write_text(plain)
fail("no folder", TORCH_EXTENSIONS_DIR=str(folder / "file"))
fail("memory", CXX=str(folder / "killed"))
if len(sys.argv) > 2:
    for name, env in json.loads(sys.argv[2]).items():
        fail(name, "cmake" if "cmake" in name else "jit", ADD2_WITH_CUDA="1", **env)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """Messages of failed builds, by name. The sources are next to nothing, as it is not they that fail."""
    folder = tmp_path_factory.mktemp("failures")
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=cache.leftovers)
    for number, name in enumerate(("add2.cpp", "add2_cpu.cpp")):
        (copy / "kernel" / name).write_text(f'extern "C" int number_{number} = {number};\n')
    (folder / "file").write_text("")
    killed = "Killed signal terminated program cc1plus"
    script(
        folder / "killed",
        f'case "$*" in *" -c "*) echo "c++: fatal error: {killed}" >&2; exit 1;; esac\nexec c++ "$@"\n',
    )
    with_nvcc = {}
    if toolchain.find_nvcc():
        old = script(folder / "cuda" / "bin" / "nvcc", 'echo "Cuda compilation tools, release 9.2, V9.2.88"\n')
        says = (
            f'[ "$1" = --version ] && echo "release {torch.version.cuda}, V"; echo "#\\$ TOP=$(dirname "$0")/.." >&2\n'
        )
        space = script(folder / "my cuda" / "bin" / "nvcc", says)
        with_nvcc = {
            "another cuda": {"CUDA_HOME": str(old.parent.parent)},
            "space": {"CUDA_HOME": str(space.parent.parent)},
            "gpu": {"TORCH_CUDA_ARCH_LIST": "99.0"},
            "gpu cmake": {"TORCH_CUDA_ARCH_LIST": "99.0"},
            "gcc": {"NVCC_PREPEND_FLAGS": "-D__GNUC__=99"},
            "flag": {"NVCC_PREPEND_FLAGS": "--bogus"},
            "tmp": {"TMPDIR": "/nonexistent"},
        }
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(folder / "cache"), "ADD2_WITH_CUDA": "0"}
    arguments = [folder, json.dumps(with_nvcc)] if with_nvcc else [folder]
    command = [sys.executable, "-c", FAILURES, *map(str, arguments)]
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"folder": str(folder)}


@pytest.fixture
def nvcc():
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    return toolchain.cuda_root(toolchain.find_nvcc()) / "bin" / "nvcc"


@pytest.fixture
def mounted(tmp_path):
    """Run a command with a small or read-only file system at a folder, in a name space of its own."""

    def mounted(options, *arguments, **env):
        folder = tmp_path / "disk"
        folder.mkdir(exist_ok=True)
        inside = 'mount -t tmpfs -o "$0" tmpfs "$1" && shift && exec "$@"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", inside, options, folder, sys.executable]
        environment = os.environ | env | {"TORCH_EXTENSIONS_DIR": str(folder)}
        command += arguments
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if "mount" in done.stderr.split(":")[0] or "unshare" in done.stderr.split(":")[0]:
            pytest.skip("needs a user name space, to mount a disk in")
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return mounted


@pytest.mark.parametrize("build", ["jit", "cmake"])
def test_undefined_symbol(build, failures):
    message = failures[f"undefined {build}"]
    assert "no_such_function" in message
    cured(message, "the library was built against another torch", "--rebuild")


@pytest.mark.thorough
def test_no_kernel_image(run, tmp_path):
    """Compiled for another GPU than the one that is there."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU")
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "TORCH_CUDA_ARCH_LIST": "7.5"}
    done = run("time.py", "--sizes", "100", status=1, **env)
    cured(done.stderr, "the library has no code for this GPU", "unset TORCH_CUDA_ARCH_LIST")


def test_no_cuda_code():
    """On a GPU machine test_only_the_cpu_part of test_builds.py meets it; this is the operator's own message."""
    message = re.search(r'"(this library has no CUDA code)', (ROOT / "kernel" / "add2.cpp").read_text())[1]
    cured(symptoms.explain(f"RuntimeError: add2: {message}"), "the library has no CUDA part", "--rebuild")


def test_library_before_torch(failures):
    """libc10.so or libtorch.so is not found where torch has not been imported first."""
    folder = Path(failures["folder"], "before")
    folder.mkdir()
    (folder / "empty.cpp").write_text("")
    lib = Path(torch.__file__).parent / "lib"
    flags = ["-shared", "-fPIC", "empty.cpp", "-o", "operator.so", f"-L{lib}", "-Wl,--no-as-needed", "-lc10"]
    subprocess.run(["c++", *flags], cwd=folder, check=True)
    code = f"import ctypes; ctypes.CDLL({str(folder / 'operator.so')!r})"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ".so: cannot open shared object file" in failed.stderr
    cured(symptoms.explain(failed.stderr), "the library was loaded before torch", "`import torch` first")


def test_no_ninja(tmp_path):
    """Neither on PATH nor in Python's environment: a Python outside of it, and a PATH with only other tools."""
    python = Path(sys.base_prefix, "bin", "python3")
    if (python.parent / "ninja").exists() and python.parent != Path("/usr/bin"):
        pytest.skip("ninja is installed next to Python")
    (tmp_path / "hidden" / "ninja").mkdir(parents=True)
    (tmp_path / "hidden" / "ninja" / "__init__.py").touch()
    (tmp_path / "bin").mkdir()
    for tool in ("c++", "cmake", "as", "ld"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    env = {"PATH": str(tmp_path / "bin"), "PYTHONPATH": f"{tmp_path / 'hidden'}:{SITE}", "ADD2_WITH_CUDA": "0"}
    env |= {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}

    def start(*arguments):
        command = [python, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done

    done = start("time.py", *QUICK)
    assert "ninja is not installed" in done.stderr
    assert "pip install ninja" in done.stderr
    assert row(start("-m", "lab.doctor").stdout, "ninja").startswith("WRONG")


@pytest.mark.thorough
def test_lock_held(tmp_path):
    """Another process builds: the next one says so and waits, and goes on when that one dies."""
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    code = "import time; from lab.build import cache\nwith cache.locked(): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    command = [sys.executable, "-c", "from lab import build; build.load('jit')"]
    waiting = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    assert f"waiting for another process, which builds add2 and holds {tmp_path}" in waiting.stderr.readline()
    holder.kill()
    waiting.communicate(timeout=120)
    assert waiting.returncode == 0
    holder.wait()


@pytest.mark.thorough
def test_disk_full(mounted):
    done = mounted("size=100k", "time.py", *QUICK, ADD2_WITH_CUDA="0", TMPDIR="/tmp")
    assert done.returncode == 1
    cured(done.stderr, "the disk is full", "lab.build clean")


@pytest.mark.thorough
def test_read_only_cache(mounted):
    done = mounted("ro", "time.py", *QUICK, ADD2_WITH_CUDA="0")
    assert done.returncode == 1
    cured(done.stderr, "the build cannot write there", "TORCH_EXTENSIONS_DIR")
    found = row(mounted("ro", "-m", "lab.doctor").stdout, "cache")
    assert found.startswith("WRONG")
    assert "TORCH_EXTENSIONS_DIR" in found


@pytest.mark.thorough
def test_cache_from_which_nothing_can_be_loaded(mounted):
    done = mounted(
        "noexec", "-c", "from lab import build\ntry: build.load('jit')\nexcept build.Failure as error: print(error)"
    )
    assert "no code may run from there" in done.stdout
    assert "TORCH_EXTENSIONS_DIR" in done.stdout.split("Cure: ")[1]
    found = row(mounted("noexec", "-m", "lab.doctor").stdout, "cache")
    assert found.startswith("WRONG")
    assert "TORCH_EXTENSIONS_DIR" in found


def test_cache_that_is_no_folder(failures):
    cured(failures["no folder"], "the build cannot write there", "TORCH_EXTENSIONS_DIR")


def test_nvcc_of_another_cuda(failures, nvcc):
    message = failures["another cuda"]
    assert "belongs to CUDA 9.2" in message
    assert f"torch {torch.__version__} was built with CUDA {torch.version.cuda}" in message
    assert "Unset CUDA_HOME" in message
    if torch.version.cuda >= "13":  # one version for all the parts
        packages = re.search("pip install ([^`]*)`", message)[1].split()
        assert len(packages) == 5
        assert all(package.endswith(f'=={torch.version.cuda}.*"') for package in packages)


def test_toolkit_with_a_space_in_its_path(failures, nvcc):
    assert "a folder with a space in its path" in failures["space"]


def test_gpu_that_nvcc_does_not_know(failures, nvcc):
    for name in ("gpu", "gpu cmake"):
        cured(failures[name], "torch or nvcc does not know the GPU", "+PTX")


def test_compiler_that_nvcc_refuses(failures, nvcc):
    """nvcc's own headers refuse a GCC that is too new: here one that says so of itself."""
    assert "unsupported GNU version" in failures["gcc"]
    cured(failures["gcc"], "nvcc refuses the C++ compiler", "CXX=")


def test_nvcc_that_says_why(failures, nvcc):
    """nvcc writes "nvcc fatal", not "error"."""
    assert "nvcc fatal   : Unknown option '--bogus'" in failures["flag"]
    assert "/nonexistent" in failures["tmp"]


def test_out_of_memory_while_compiling(failures):
    cured(failures["memory"], "the machine ran out of memory", "MAX_JOBS=1")


@pytest.fixture(scope="session")
def nvcc_of_pypi(tmp_path_factory):
    """Install the nvcc of a release by the command that the message names; returns its site-packages."""

    def install(release):
        command = toolchain.nvcc_cure().split("`")[1]
        assert command.startswith("python3 -m pip install ")
        packages = [word.strip('"').replace(torch.version.cuda, release) for word in command.split()[4:]]
        site = tmp_path_factory.getbasetemp() / f"nvcc-{release}"
        if not site.exists():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, *packages]
            if subprocess.run(pip, capture_output=True, check=False).returncode:
                pytest.skip("needs a package index")
        versions = {".".join(path.name.split("-")[1].split(".")[:2]) for path in site.glob("nvidia_*.dist-info")}
        assert versions == {release}
        return site

    return install


@pytest.mark.thorough
@pytest.mark.parametrize("release", sorted({"13.0", torch.version.cuda or "13.0"}))
def test_nvcc_from_pypi(release, project, run, nvcc, tmp_path, nvcc_of_pypi):
    """No toolkit is installed; the command that the message names installs one that does, for all builds."""
    if torch.version.cuda < "13":
        pytest.skip("the wheels of CUDA 12 are no toolkit")
    site = nvcc_of_pypi(release)
    home = next(site.glob("nvidia/cu*"))
    code = f"""
from lab import build
from lab.build import toolchain
assert str(toolchain.find_nvcc()) == {str(home / "bin" / "nvcc")!r}, toolchain.find_nvcc()
for compiler in ("jit", "setup", "cmake"):
    library = build.build(compiler).library
    print(compiler, b"launch_add2_cuda" in library.read_bytes())
"""
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "PYTHONPATH": f"{site}:{SITE}"}
    done = run("-c", code, root=project, drop=("CUDA_HOME", "CUDA_PATH"), **environment)
    assert done.stdout == "jit True\nsetup True\ncmake True\n"


@pytest.mark.thorough
def test_a_program_tells_it(run, project, tmp_path):
    """train.py with a build that does not load: the same message, exit status 1, no traceback."""
    source = project / "kernel" / "add2_cpu.cpp"
    source.write_text(source.read_text() + '\nextern "C" int no_such_function();\nint used = no_such_function();\n')
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    done = run("train.py", "--compiler", "cmake", "--device", "cpu", root=project, status=1, **env)
    cured(done.stderr, "the library was built against another torch", "--rebuild")


def test_every_line_of_the_page_is_a_symptom():
    """docs/troubleshooting.md: each line that starts with a message explains it; and the tests that it names exist."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("- `")]
    assert len(lines) >= 15
    for line in lines:
        messages, cause = re.fullmatch(r"- (`[^`]+`(?:, `[^`]+`)*): (.*?)\. \*Cure:\* .*", line).groups()
        for message in re.findall("`([^`]+)`", messages):
            cured(symptoms.explain(f"error: {message.replace('...', 'X')} there"), cause, "")
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) > len(lines) / 2
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_what_is_explained(monkeypatch, tmp_path):
    """The line with the message, without its links and its tests; nothing for words that are not a message's."""
    line = (
        "- `is a ...pot`, `steams`: it is [no cup](cups.md#cup) of `tea`. *Cure:* use a cup (a big one). (`test_x`)\n"
    )
    monkeypatch.setattr(symptoms, "PAGE", tmp_path / "page.md")
    assert symptoms.explain("it steams") is None
    symptoms.PAGE.write_text("A pot that `leaks`: no.\n\n" + line)
    for message in ("error: it is a teapot!", "it steams"):
        assert symptoms.explain(message) == "Cause: it is no cup of `tea`.\nCure: use a cup (a big one)."
    for message in ("it is a\npot", "Steams", "it leaks", "tea"):
        assert symptoms.explain(message) is None


def test_running_is_not_building():
    """An error of a call is not explained by what can be wrong with a build."""
    assert symptoms.explain("File exists: 'results'") is not None
    assert symptoms.explain("File exists: 'results'", running=True) is None
    assert symptoms.explain("no kernel image is available", running=True) is not None


def test_doctor(run):
    """On this machine, where the other tests build everything, nothing is wrong. Any terminal can print it."""
    done = run("-OO", "-m", "lab.doctor", PYTHONIOENCODING="ascii")
    assert "WRONG" not in done.stdout
    for subject in ("torch", "GPU", "nvcc", "C++", "ninja", "cmake", "setuptools", "cache"):
        assert row(done.stdout, subject).startswith("ok")
    assert ("--compiler nvrtc: works" in done.stdout) == (toolchain.lack_for_nvrtc() is None)


def test_doctor_on_odd_settings(run, tmp_path):
    (tmp_path / "file").touch()
    output = run("-m", "lab.doctor", status=1, CXX='g++ "', TORCH_EXTENSIONS_DIR=str(tmp_path / "file/cache")).stdout
    for subject in ("C++", "cache"):
        assert row(output, subject).startswith("WRONG")


def test_doctor_without_torch(run, tmp_path):
    """-S: no site-packages. And a torch that does not load."""
    output = run("-S", "-m", "lab.doctor", status=1, drop=("PYTHONPATH",)).stdout
    assert row(output, "torch").endswith("No module named 'torch'. `python3 -m pip install --force-reinstall torch`")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libc10.so: cannot open shared object file')")
    output = run("-m", "lab.doctor", status=1, PYTHONPATH=str(tmp_path)).stdout
    assert "libc10.so: cannot open shared object file" in row(output, "torch")
    assert "force-reinstall" in row(output, "torch")


def test_doctor_explains():
    command = [sys.executable, "-m", "lab.doctor", "--explain"]
    for text, status, answer in (("undefined symbol", 0, "Cure: "), ("segmentation fault", 1, "No symptom")):
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == status
        assert answer in done.stdout
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "stdin, which is closed" in done.stderr


def test_output_onto_an_input(run, tmp_path):
    """A file that is read is not a file to write: refused before anything runs, and still there."""
    file = tmp_path / "libadd2.so"
    file.write_text("a library")
    for program, option in (("time.py", "--json"), ("train.py", "--json")):
        assert "would replace the other" in run(program, "--library", file, option, file, status=2).stderr
    assert file.read_text() == "a library"
