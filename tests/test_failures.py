"""Failures that docs/troubleshooting.md lists, produced, and the message that the user reads. Also the doctor."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_builds import executable

from lab import build, toolchain

ROOT = Path(__file__).resolve().parent.parent


def row(output, subject):
    """The doctor's line on a subject."""
    [found] = [line for line in output.splitlines() if line.split()[1:2] == [subject]]
    return found


def test_not_on_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(build.Failure, match="Linux"):
        build.load("jit")


def test_other_library(run):
    """--library with a file that is none of ours."""
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


def test_import_without_a_build(project, run):
    code = "try: import add2\nexcept ImportError as error: print(error)"
    assert "pip install --no-build-isolation" in run("-c", code, root=project).stdout


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch asks the GPU what to compile for")
def test_a_project_of_your_own(tmp_path):
    """torch's load(), not ours, where nvcc is a script: the two errors that the page lists."""
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    executable(tmp_path / "cuda/bin/nvcc", f'exec "{toolchain.find_nvcc()}" "$@"\n')
    (tmp_path / "a.cu").touch()
    code = "import torch.utils.cpp_extension as c; c.load('a', ['a.cu'], build_directory='.', is_python_module=False)"
    env = os.environ | {"CUDA_HOME": str(tmp_path / "cuda"), "PATH": toolchain.tool_path()}
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    for gpus, symptom in (("", "list index out of range"), ("9.0", "cannot find -lcudart")):
        options = {"capture_output": True, "text": True, "env": env | {"TORCH_CUDA_ARCH_LIST": gpus}}
        failed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, **options)
        assert symptom in failed.stderr
        assert symptom in page


def test_read_only_checkout(project):
    """Refused before anything is built, as the library would lie in the checkout."""
    mount = f'mount --bind "{project}" "{project}" && mount -o remount,bind,ro "{project}" && cd "{project}"'
    code = "from lab import build\ntry: build.load('setup')\nexcept build.Failure as error: print(error)"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable]
    done = subprocess.run([*command, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    if re.match("mount:|unshare:", done.stderr):
        pytest.skip("needs a user name space, to mount a disk in")
    assert done.stdout.startswith("The setup build failed: [Errno 30] Read-only file system")
    assert "move the project" in done.stdout.split("Cure: ")[1]


@pytest.mark.thorough
def test_cpp_example_with_nvcc_behind_a_script(tmp_path):
    """find_package(Torch) would say that CUDA cannot be found; the example says what to set."""
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    executable(tmp_path / "bin/nvcc", f'exec "{toolchain.find_nvcc()}" "$@"\n')
    env = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    env["PATH"] = f"{tmp_path}/bin:{toolchain.tool_path()}"
    command = ["cmake", "-S", ROOT / "examples/cpp", "-B", tmp_path]
    command += [f"-DCMAKE_PREFIX_PATH={Path(torch.__file__).parent}/share/cmake"]
    for home in ({}, {"CUDA_HOME": str(toolchain.cuda_root(toolchain.find_nvcc()))}):  # the same folder again
        done = subprocess.run(command, env=env | home, capture_output=True, text=True, check=False)
        assert ("export CUDA_HOME" in done.stderr) == (not home)


def test_the_page_names_tests_that_exist():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = re.findall(r"`(test_\w+)`", page)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_explain():
    explained = toolchain.explain("a.so: undefined symbol: _ZN3c10")
    assert explained.splitlines()[0].startswith("Cause: the library was built against another torch")
    assert explained.splitlines()[1].startswith("Cure: rebuild it")
    assert toolchain.explain("segmentation fault") is None


def test_doctor(run, tmp_path):
    """Nothing is wrong where the other tests build everything, and what is wrong has its cure."""
    root = toolchain.find_nvcc() and toolchain.cuda_root(toolchain.find_nvcc())
    well = run("-m", "lab.doctor", CUDA_HOME=str(root or "")).stdout
    for subject in ("torch", "GPU", "nvcc", "CUDA_HOME", "C++", "ninja", "cmake", "setuptools"):
        assert row(well, subject).startswith("ok")
    executable(tmp_path / "bin/nvcc", f'exec "{root}/bin/nvcc" "$@"\n')
    env = {"CXX": "none", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    ill = run("-m", "lab.doctor", status=1, drop=("CUDA_HOME", "CUDA_PATH"), **env).stdout
    for subject in ("C++", *["CUDA_HOME"] * bool(root)):
        assert row(ill, subject).startswith("WRONG")
    assert not root or f"`export CUDA_HOME={root}`" in row(ill, "CUDA_HOME")
