"""examples/3_starter, as a reader uses it: copied out of the project and renamed, it builds and passes its tests."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

STARTER = Path(__file__).resolve().parent.parent / "examples" / "3_starter"
LEFT = shutil.ignore_patterns("build", "*.so", "*.egg-info", "__pycache__", ".pytest_cache", ".ruff_cache")


@pytest.fixture
def project(tmp_path):
    return Path(shutil.copytree(STARTER, tmp_path / "a copy", ignore=LEFT))


def run(folder, *arguments, status=0):
    """Python in the starter's folder. The nvcc on PATH is all that it gets to know about CUDA."""
    env = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    env |= {"PATH": sysconfig.get_path("scripts") + os.pathsep + env["PATH"], "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def contents(folder):
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_it_is_short_and_stands_alone(project):
    files = contents(project)
    assert len(files) <= 10
    assert sum(len(text.splitlines()) for text in files.values()) <= 420
    assert not re.search(r"\badd2|\blab\b|\.\./(?!my_op)", "".join(files.values()))


def test_rename(project):
    """A name that would not work is refused, and then nothing is changed. A good one is everywhere afterwards."""
    before = contents(project)
    for name in ("", "double", "torch", "json", "while", "tests", "launch", "My_op", "my-op", "a__b", "_x", "2x"):
        assert "rename.py: " in run(project, "rename.py", name, status=1), name
    assert contents(project) == before
    assert "copy the folder first" in run(STARTER, "rename.py", "my_op", status=1)
    for name in ("first_name", "softmax2"):
        run(project, "rename.py", name)
    renamed = {Path(str(path).replace("scaled_relu", name)): text for path, text in before.items()}
    assert contents(project) == {path: text.replace("scaled_relu", name) for path, text in renamed.items()}


@pytest.mark.thorough
def test_it_builds_and_passes(project, tmp_path):
    run(project, "rename.py", "my_op")
    run(project, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, ".")
    (wheel,) = tmp_path.glob("my_op-0.1.0-py3-none-linux_*.whl")
    zipfile.ZipFile(wheel).extract("my_op/_C.so", project)
    has_nvcc = bool(torch.version.cuda and shutil.which("nvcc"))
    assert (b"my_op_kernel" in (project / "my_op" / "_C.so").read_bytes()) == has_nvcc
    said = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs")
    assert ("SKIPPED" in said) != has_nvcc, said  # where there is nvcc, the kernel is compiled for named GPUs
    assert "my_op" in run(project, "benchmark.py")
