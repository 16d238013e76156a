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

ROOT = Path(__file__).resolve().parent.parent
TORCH = Path(torch.__file__).parent
FAILURES = """
import json, os, sys, torch
from lab import build

found = {}
for name, (compiler, env, _) in json.loads(sys.argv[1]).items():
    out, to_parent = os.pipe()
    if os.fork() == 0:
        os.environ.update(env)
        try: text = str(build.load(compiler).library)
        except build.Failure as error: text = str(error)
        os.write(to_parent, text.encode()[-60000:])
        os._exit(0)
    os.close(to_parent)
    with os.fdopen(out) as file: found[name] = file.read()
print(json.dumps(found))
"""


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def row(output, subject):
    """The doctor's line on a subject."""
    [found] = [line for line in output.splitlines() if line.split()[1:2] == [subject]]
    return found


def test_failed_builds(tmp_path, run):
    """The tool's own error, and below it the cause and the cure. One process; sources that are next to nothing."""
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=build.leftovers)
    (copy / "kernel/add2.cpp").write_text('extern "C" int number = 1;\n')
    (copy / "kernel/add2_cpu.cpp").write_text('extern "C" int no_such_function();\nint used = no_such_function();\n')
    (tmp_path / "file").touch()
    killed = "c++: fatal error: Killed signal terminated program cc1plus"
    killed = script(tmp_path / "killed", f'case "$*" in *" -c "*) echo "{killed}" >&2; exit 1;; esac\nexec c++ "$@"\n')
    another_torch = ["no_such_function", "Cause: the library was built against another torch", "--rebuild"]
    cases = {
        "undefined jit": ("jit", {}, another_torch),
        "undefined cmake": ("cmake", {}, another_torch),
        "no folder": ("jit", {"TORCH_EXTENSIONS_DIR": f"{tmp_path}/file"}, ["cannot write there", "_EXTENSIONS_DIR"]),
        "memory": ("jit", {"CXX": killed}, ["Cause: the machine ran out of memory", "MAX_JOBS=1"]),
        "no compiler": ("setup", {"CXX": "no-such-compiler"}, ["no-such-compiler is not installed", "apt-get"]),
    }
    if toolchain.find_nvcc():
        says = 'echo "Cuda compilation tools, release 9.2, V9.2.88"\n'
        old = Path(script(tmp_path / "cuda/bin/nvcc", says)).parents[1]
        unknown = ({"TORCH_CUDA_ARCH_LIST": "99.0"}, ["Cause: torch or nvcc does not know the GPU", "+PTX"])
        with_nvcc = {
            "another CUDA": ("jit", {"CUDA_HOME": str(old)}, ["belongs to CUDA 9.2", "built with CUDA"]),
            "unknown GPU, jit": ("jit", *unknown),
            "unknown GPU, cmake": ("cmake", *unknown),
            "GCC": ("jit", {"NVCC_PREPEND_FLAGS": "-D__GNUC__=99"}, ["Cause: nvcc refuses the C++ compiler", "CXX="]),
        }
        cases |= {name: (each[0], each[1] | {"ADD2_WITH_CUDA": "1"}, each[2]) for name, each in with_nvcc.items()}
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    found = json.loads(run("-c", FAILURES, json.dumps(cases), root=copy, **env).stdout.splitlines()[-1])
    for name, (_, _, words) in cases.items():
        assert [word for word in words if word not in found[name]] == [], (name, found[name])


def test_no_nvcc(monkeypatch):
    monkeypatch.delenv("ADD2_WITH_CUDA", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(toolchain, "look_for_nvcc", lambda: None)
    assert toolchain.find_nvcc() is None
    assert "pip install" in toolchain.cuda_cure()
    monkeypatch.setenv("ADD2_WITH_CUDA", "1")
    with pytest.raises(build.Failure, match="no nvcc is found"):
        toolchain.find_nvcc()


def test_unsupported(monkeypatch):
    """Windows, macOS, and a torch for ROCm, before anything is built."""
    for where, name, value, message in ((torch.version, "hip", "7.0", "ROCm"), (sys, "platform", "win32", "Linux")):
        monkeypatch.setattr(where, name, value)
        with pytest.raises(build.Failure, match=message):
            build.load("jit")


def test_other_library(run):
    """--library with a file that is none of ours; and `import add2` where nothing is built."""
    code = """
import re, torch
from pathlib import Path
from lab.build import Failure, load
for library in (re.search(r"/.*/libm.so.6", Path("/proc/self/maps").read_text())[0], "/no-such-file.so"):
    try: load("jit", library=Path(library))
    except Failure as error: print(error)
"""
    out = run("-c", code).stdout
    assert "libm.so.6 has no operator add2" in out
    assert "/no-such-file.so failed" in out


def test_library_before_torch(tmp_path):
    """libc10.so or libtorch.so is not found where torch has not been imported first."""
    (tmp_path / "empty.cpp").touch()
    flags = ["-shared", "-fPIC", "empty.cpp", "-o", "operator.so", f"-L{TORCH}/lib", "-Wl,--no-as-needed", "-lc10"]
    subprocess.run(["c++", *flags], cwd=tmp_path, check=True)
    code = f"import ctypes; ctypes.CDLL('{tmp_path}/operator.so')"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Cause: the library was loaded before torch" in toolchain.explain(failed.stderr)


def test_import_without_a_build(project, run):
    code = "try: import add2\nexcept ImportError as error: print(error)"
    assert "pip install --no-build-isolation" in run("-c", code, root=project).stdout


def test_read_only_checkout(project):
    """Refused before anything is built."""
    mount = f'mount --bind "{project}" "{project}" && mount -o remount,bind,ro "{project}" && cd "{project}"'
    code = "from lab import build\ntry: build.load('setup')\nexcept build.Failure as error: print(error)"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable]
    done = subprocess.run([*command, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    if "mount" in done.stderr.split(":")[0] or "unshare" in done.stderr.split(":")[0]:
        pytest.skip("needs a user name space, to mount a disk in")
    assert done.stdout.startswith("The setup build failed: [Errno 30] Read-only file system")
    assert "move the project" in done.stdout.split("Cure: ")[1]


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch asks the GPU what to compile for")
def test_a_project_of_your_own(tmp_path):
    """torch's load(), not ours, where nvcc is a script: the two errors, as the doctor explains them."""
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    script(tmp_path / "cuda/bin/nvcc", f'exec "{toolchain.find_nvcc()}" "$@"\n')
    (tmp_path / "a.cu").touch()
    code = "import torch.utils.cpp_extension as c; c.load('a', ['a.cu'], build_directory='.', is_python_module=False)"
    env = os.environ | {"CUDA_HOME": str(tmp_path / "cuda"), "PATH": toolchain.tool_path()}
    doctor = [sys.executable, "-m", "lab.doctor", "--explain"]
    for gpus, symptom, cure in (
        ("", "list index out of range", "TORCH_CUDA_ARCH_LIST"),
        ("9.0", "cannot find -lcudart", "CUDA_HOME"),
    ):
        options = {"capture_output": True, "text": True, "env": env | {"TORCH_CUDA_ARCH_LIST": gpus}}
        failed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, **options)
        assert symptom in failed.stderr
        explained = subprocess.run(doctor, cwd=ROOT, input=failed.stderr, check=True, **options)
        assert cure in explained.stdout.split("Cure: ")[1]


def test_cpp_example_with_nvcc_behind_a_script(tmp_path):
    """find_package(Torch) would say that CUDA cannot be found; the example says what to set."""
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    script(tmp_path / "bin/nvcc", f'exec "{toolchain.find_nvcc()}" "$@"\n')
    env = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    env["PATH"] = f"{tmp_path}/bin:{toolchain.tool_path()}"
    command = ["cmake", "-S", ROOT / "examples/cpp", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={TORCH}/share/cmake"]
    for home in ({}, {"CUDA_HOME": str(toolchain.cuda_root(toolchain.find_nvcc()))}):  # the same folder again
        done = subprocess.run(command, env=env | home, capture_output=True, text=True, check=False)
        assert ("export CUDA_HOME" in done.stderr) == (not home)


def test_every_line_of_the_page_is_a_symptom():
    """docs/troubleshooting.md: each line that starts with a message explains it; and the tests that it names exist."""
    page = toolchain.PAGE.read_text()
    lines = re.findall(r"^- (`[^`]+`(?:, `[^`]+`)*): (.*?) \*Cure:\* .* \(.*\)$", page, re.MULTILINE)
    assert len(lines) >= 15
    for messages, cause in lines:
        for message in re.findall("`([^`]+)`", messages):
            explained = toolchain.explain(f"error: {message.replace('...', 'X')} there")
            assert explained.startswith(f"Cause: {cause[:15]}"), message
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in tests] == []
    assert toolchain.explain("segmentation fault") is None


def test_doctor(run, tmp_path):
    """Nothing is wrong where the other tests build everything, and what is wrong has its cure."""
    root = toolchain.find_nvcc() and toolchain.cuda_root(toolchain.find_nvcc())
    well = run("-m", "lab.doctor", CUDA_HOME=str(root or "")).stdout
    for subject in ("torch", "GPU", "nvcc", "CUDA_HOME", "C++", "ninja", "cmake", "setuptools", "cache"):
        assert row(well, subject).startswith("ok")
    (tmp_path / "file").touch()
    script(tmp_path / "bin/nvcc", f'exec "{root}/bin/nvcc" "$@"\n')
    env = {"CXX": "none", "TORCH_EXTENSIONS_DIR": f"{tmp_path}/file", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    ill = run("-m", "lab.doctor", status=1, drop=("CUDA_HOME", "CUDA_PATH"), **env).stdout
    for subject in ("C++", "cache", *["CUDA_HOME"] * bool(root)):
        assert row(ill, subject).startswith("WRONG")
    assert not root or f"`export CUDA_HOME={root}`" in row(ill, "CUDA_HOME")


def test_doctor_without_torch(run):
    """-S: no site-packages."""
    done = run("-S", "-m", "lab.doctor", status=1, drop=("PYTHONPATH",))
    assert "No module named 'torch'" in row(done.stdout, "torch")
