"""examples/starter, as a reader uses it: copied out of the project and renamed, it builds and passes its tests."""

import functools
import os
import re
import shutil
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

from lab.build import leftovers

STARTER = Path(__file__).resolve().parent.parent / "examples" / "starter"


@pytest.fixture
def project(tmp_path):
    return Path(shutil.copytree(STARTER, tmp_path / "a copy", ignore=leftovers))


@pytest.fixture
def python(run, project):
    """Run Python in the copy. The nvcc on PATH is all that the starter gets to know about CUDA."""
    path = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
    return functools.partial(run, root=project, drop=("CUDA_HOME", "CUDA_PATH"), PATH=path)


def contents(folder):
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_it_is_short_and_stands_alone(project):
    files = contents(project)
    assert len(files) <= 10
    assert sum(len(text.splitlines()) for text in files.values()) <= 420
    assert not re.search(r"\badd2|\blab\b|\.\./(?!my_op)", "".join(files.values()))


def test_rename(python, project):
    """A name that would not work is refused, and then nothing is changed. A good one is everywhere afterwards."""
    before = contents(project)
    for name in ("", "double", "torch", "json", "while", "tests", "launch", "My_op", "my-op", "a__b", "_x", "2x"):
        assert "rename.py: " in python("rename.py", name, status=1).stderr, name
    assert contents(project) == before
    assert "copy the folder first" in python("rename.py", "my_op", root=STARTER, status=1).stderr
    for name in ("first_name", "softmax2"):
        python("rename.py", name)
    renamed = {Path(str(path).replace("scaled_relu", name)): text for path, text in before.items()}
    assert contents(project) == {path: text.replace("scaled_relu", name) for path, text in renamed.items()}


@pytest.mark.thorough
def test_it_builds_and_passes(python, project, tmp_path):
    python("rename.py", "my_op")
    python("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, ".")
    (wheel,) = tmp_path.glob("my_op-0.1.0-py3-none-linux_*.whl")
    zipfile.ZipFile(wheel).extract("my_op/_C.so", project)
    has_nvcc = bool(torch.version.cuda and shutil.which("nvcc"))
    assert (b"my_op_kernel" in (project / "my_op" / "_C.so").read_bytes()) == has_nvcc
    said = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs").stdout
    assert ("SKIPPED" in said) != has_nvcc, said  # where there is nvcc, the kernel is compiled for named GPUs
    assert "my_op" in python("benchmark.py").stdout
