"""Failures that docs/troubleshooting.md lists, produced, and the message that the user reads. Also the doctor."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_builds import executable

from lab import toolchain

ROOT = Path(__file__).resolve().parent.parent


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


def test_the_page_names_tests_that_exist():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = re.findall(r"`(test_\w+)`", page)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_doctor(run, tmp_path):
    """What is wrong has its cure; the rest is well, where the other tests build everything."""
    root = toolchain.find_nvcc() and toolchain.cuda_root(toolchain.find_nvcc())
    executable(tmp_path / "bin/nvcc", f'exec "{root}/bin/nvcc" "$@"\n')
    env = {"CXX": "none", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    told = run("-m", "lab.doctor", status=1, drop=("CUDA_HOME", "CUDA_PATH"), **env).stdout
    rows = {line.split()[1]: line for line in told.splitlines()}
    wrong = {"C++", *["CUDA_HOME"] * bool(root)}
    assert {subject for subject, row in rows.items() if row.startswith("WRONG")} == wrong
    assert {"torch", "GPU", "nvcc", "ninja", "cmake", "setuptools"} <= rows.keys()
    assert not root or f"`export CUDA_HOME={root}`" in rows["CUDA_HOME"]
