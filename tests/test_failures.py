"""Failures that docs/troubleshooting.md lists, produced, and the message that the user reads. Also the doctor."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab import build, toolchain
from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
TORCH = Path(torch.__file__).parent


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def cured(text, cause, cure):
    assert f"Cause: {cause}" in text, text
    assert cure in text.split("Cure: ")[1], text


def row(output, subject):
    """The doctor's line on a subject."""
    [found] = [line for line in output.splitlines() if line.split()[1:2] == [subject]]
    return found


FAILURES = """
import json, os, sys, torch
from lab import build

found = {}
for name, (compiler, env) in json.loads(sys.argv[1]).items():
    out, to_parent = os.pipe()
    if os.fork() == 0:
        os.environ.update(env)
        text = "no failure"
        try: build.load(compiler)
        except build.Failure as error: text = str(error)
        os.write(to_parent, text.encode()[-60000:])
        os._exit(0)
    os.close(to_parent)
    with os.fdopen(out) as file: found[name] = file.read()
    os.wait()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory, run):
    """Messages of failed builds, by name, from one process. The sources are next to nothing: it is not they that fail."""
    folder = tmp_path_factory.mktemp("failures")
    copy = shutil.copytree(ROOT, folder / "copy", ignore=leftovers)
    (copy / "kernel/add2.cpp").write_text('extern "C" int number = 1;\n')
    (copy / "kernel/add2_cpu.cpp").write_text('extern "C" int no_such_function();\nint used = no_such_function();\n')
    (folder / "file").write_text("")
    killed = "c++: fatal error: Killed signal terminated program cc1plus"
    killed = script(folder / "killed", f'case "$*" in *" -c "*) echo "{killed}" >&2; exit 1;; esac\nexec c++ "$@"\n')
    cases = {f"undefined {each}": (each, {}) for each in ("jit", "cmake")}
    cases["no folder"] = ("jit", {"TORCH_EXTENSIONS_DIR": str(folder / "file")})
    cases["memory"] = ("jit", {"CXX": killed})
    cases["no compiler"] = ("jit", {"CXX": "no-such-compiler"})
    if toolchain.find_nvcc():
        old = script(folder / "cuda/bin/nvcc", 'echo "Cuda compilation tools, release 9.2, V9.2.88"\n')
        with_nvcc = {
            "another cuda": ("jit", {"CUDA_HOME": str(Path(old).parents[1])}),
            "gpu": ("jit", {"TORCH_CUDA_ARCH_LIST": "99.0"}),
            "gpu cmake": ("cmake", {"TORCH_CUDA_ARCH_LIST": "99.0"}),
            "gcc": ("jit", {"NVCC_PREPEND_FLAGS": "-D__GNUC__=99"}),
        }
        cases |= {name: (compiler, env | {"ADD2_WITH_CUDA": "1"}) for name, (compiler, env) in with_nvcc.items()}
    env = {"TORCH_EXTENSIONS_DIR": str(folder / "cache"), "ADD2_WITH_CUDA": "0"}
    return json.loads(run("-c", FAILURES, json.dumps(cases), root=copy, **env).stdout.splitlines()[-1])


@pytest.fixture
def nvcc():
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")


def test_undefined_symbol(failures):
    for compiler in ("jit", "cmake"):
        assert "no_such_function" in failures[f"undefined {compiler}"]
        cured(failures[f"undefined {compiler}"], "the library was built against another torch", "--rebuild")


def test_cache_that_is_no_folder(failures):
    cured(failures["no folder"], "the build cannot write there", "TORCH_EXTENSIONS_DIR")


def test_out_of_memory_while_compiling(failures):
    cured(failures["memory"], "the machine ran out of memory", "MAX_JOBS=1")


def test_no_compiler(failures):
    assert "no-such-compiler is not installed" in failures["no compiler"]
    assert "apt-get install g++" in failures["no compiler"]


def test_nvcc_of_another_cuda(failures, nvcc):
    assert "belongs to CUDA 9.2" in failures["another cuda"]
    assert f"torch {torch.__version__} was built with CUDA {torch.version.cuda}" in failures["another cuda"]


def test_gpu_that_nvcc_does_not_know(failures, nvcc):
    for name in ("gpu", "gpu cmake"):
        cured(failures[name], "torch or nvcc does not know the GPU", "+PTX")


def test_compiler_that_nvcc_refuses(failures, nvcc):
    """nvcc's own headers refuse a GCC that is too new: here one that says so of itself."""
    cured(failures["gcc"], "nvcc refuses the C++ compiler", "CXX=")


def test_no_nvcc(monkeypatch):
    monkeypatch.delenv("ADD2_WITH_CUDA", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(toolchain, "look_for_nvcc", lambda: None)
    assert toolchain.find_nvcc() is None
    assert "pip install" in toolchain.cuda_cure()
    monkeypatch.setenv("ADD2_WITH_CUDA", "1")
    with pytest.raises(build.Failure, match="no nvcc is found"):
        toolchain.find_nvcc()


@pytest.mark.parametrize("change", ["platform", "hip"])
def test_unsupported(change, monkeypatch):
    """Windows, macOS, and a torch for ROCm, before anything is built."""
    monkeypatch.setattr(*{"platform": (sys, "platform", "win32"), "hip": (torch.version, "hip", "7.0")}[change])
    with pytest.raises(build.Failure, match={"platform": "needs Linux", "hip": "ROCm"}[change]):
        build.load("jit")


def test_other_library(run):
    """--library with a file that is none of ours."""
    code = """
import re, torch
from pathlib import Path
from lab.build import Failure, load
libm = re.search(r"/.*/libm.so.6", Path("/proc/self/maps").read_text())[0]
for library in (libm, "/no-such-file.so"):
    try: load("jit", library=Path(library))
    except Failure as error: print(error)
"""
    out = run("-c", code).stdout
    assert "libm.so.6 has no operator add2" in out
    assert "/no-such-file.so failed" in out


def test_library_before_torch(tmp_path):
    """libc10.so or libtorch.so is not found where torch has not been imported first."""
    (tmp_path / "empty.cpp").write_text("")
    flags = ["-shared", "-fPIC", "empty.cpp", "-o", "operator.so", f"-L{TORCH}/lib", "-Wl,--no-as-needed", "-lc10"]
    subprocess.run(["c++", *flags], cwd=tmp_path, check=True)
    code = f"import ctypes; ctypes.CDLL({str(tmp_path / 'operator.so')!r})"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    cured(toolchain.explain(failed.stderr), "the library was loaded before torch", "`import torch` first")


def test_import_without_a_build(project, run):
    code = "try: import add2\nexcept ImportError as error: print(error)"
    assert "pip install --no-build-isolation" in run("-c", code, root=project).stdout


@pytest.mark.parametrize("options", ["ro", pytest.param("noexec", marks=pytest.mark.thorough)])
def test_disk(options, tmp_path):
    """A read-only checkout is refused before anything is built; so is a cache from which nothing can be loaded."""
    code = "from lab import build\ntry: build.load('{}')\nexcept build.Failure as error: print(error)"
    code = code.format("setup" if options == "ro" else "jit")
    mount = f'mount --bind "{ROOT}" "{ROOT}" && mount -o remount,bind,ro "{ROOT}" && cd "{ROOT}"'
    if options == "noexec":
        mount = f'mount -t tmpfs -o noexec tmpfs "{tmp_path}"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable]
    env = os.environ | {"ADD2_WITH_CUDA": "0", "TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*command, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if "mount" in done.stderr.split(":")[0]:
        pytest.skip("needs a user name space, to mount a disk in")
    cured(done.stdout, "the build cannot write there", "TORCH_EXTENSIONS_DIR")
    if options == "ro":
        assert "running build_ext" not in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch asks the GPU what to compile for")
def test_a_project_of_your_own(tmp_path, nvcc):
    """torch's load(), not ours, where nvcc is a script: the two errors, as the doctor explains them."""
    root = toolchain.cuda_root(toolchain.find_nvcc())
    script(tmp_path / "cuda/bin/nvcc", f'exec "{root}/bin/nvcc" "$@"\n')
    (tmp_path / "a.cu").write_text("")
    code = "import torch.utils.cpp_extension as c; c.load('a', ['a.cu'], build_directory='.', is_python_module=False)"
    env = os.environ | {"CUDA_HOME": str(tmp_path / "cuda"), "PATH": toolchain.tool_path()}
    env.pop("TORCH_CUDA_ARCH_LIST", None)
    for gpus, symptom, cure in (
        ({}, "list index out of range", "TORCH_CUDA_ARCH_LIST"),
        ({"TORCH_CUDA_ARCH_LIST": "9.0"}, "cannot find -lcudart", "CUDA_HOME"),
    ):
        command = [sys.executable, "-c", code]
        failed = subprocess.run(command, cwd=tmp_path, env=env | gpus, capture_output=True, text=True, check=False)
        assert symptom in failed.stderr
        assert cure in toolchain.explain(failed.stderr).split("Cure: ")[1]


def test_every_line_of_the_page_is_a_symptom():
    """docs/troubleshooting.md: each line that starts with a message explains it; and the tests that it names exist."""
    page = toolchain.PAGE.read_text()
    lines = [line for line in page.splitlines() if line.startswith("- `")]
    assert len(lines) >= 15
    for line in lines:
        messages, cause = re.fullmatch(r"- (`[^`]+`(?:, `[^`]+`)*): (.*?) \*Cure:\* .* \(.*\)", line).groups()
        for message in re.findall("`([^`]+)`", messages):
            cured(
                toolchain.explain(f"error: {message.replace('...', 'X')} there"),
                re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cause),
                "",
            )
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in tests] == []


def test_doctor(run, tmp_path):
    """Nothing is wrong where the other tests build everything, and what is wrong has its cure."""
    root = toolchain.find_nvcc() and toolchain.cuda_root(toolchain.find_nvcc())
    well = run("-m", "lab.doctor", CUDA_HOME=str(root or ""))
    for subject in ("torch", "GPU", "nvcc", "CUDA_HOME", "C++", "ninja", "cmake", "setuptools", "cache"):
        assert row(well.stdout, subject).startswith("ok")
    (tmp_path / "file").touch()
    nvcc = script(tmp_path / "bin/nvcc", f'exec "{root}/bin/nvcc" "$@"\n')
    env = {"CXX": "none", "TORCH_EXTENSIONS_DIR": str(tmp_path / "file/cache")}
    env |= {"CUDA_HOME": "", "PATH": f"{Path(nvcc).parent}:{os.environ['PATH']}"}
    ill = run("-m", "lab.doctor", status=1, **env).stdout
    for subject in ["C++", "cache", *["CUDA_HOME"] * bool(root)]:
        assert row(ill, subject).startswith("WRONG")
    assert not root or f"`export CUDA_HOME={root}`" in row(ill, "CUDA_HOME")


def test_doctor_without_torch(run, tmp_path):
    """-S: no site-packages. And a torch that does not load."""
    assert "No module named 'torch'" in row(
        run("-S", "-m", "lab.doctor", status=1, drop=("PYTHONPATH",)).stdout, "torch"
    )
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libc10.so: cannot open shared object file')")
    assert "force-reinstall" in row(run("-m", "lab.doctor", status=1, PYTHONPATH=str(tmp_path)).stdout, "torch")


def test_doctor_explains():
    command = [sys.executable, "-m", "lab.doctor", "--explain"]
    for text, status, answer in (("undefined symbol", 0, "Cure: "), ("segmentation fault", 1, "No symptom")):
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, answer in done.stdout) == (status, True)
