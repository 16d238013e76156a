"""The library as it is shipped: it takes nothing from Python, and from torch only functions of its stable C API. So one
file serves every Python, and every torch from 2.10 on.

    OTHER_PYTHON=/path/to/another/venv/bin/python python3 -m pytest tests/test_library.py

loads it in that environment, too, with another torch.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import squared_relu

PACKAGE = Path(squared_relu.__file__).parent
needs_binutils = pytest.mark.skipif(not shutil.which("readelf"), reason="needs nm and readelf (binutils)")


def output(*command, **options):
    return subprocess.check_output([*map(str, command)], text=True, **options)


@needs_binutils
def test_symbols():
    """From the C API of torch, from the system (with a version in the name), from the C++ standard library; or weak."""
    allowed = re.compile(r"[Uw] ((aoti_)?torch_\w+|\S+@(GLIBC|GLIBCXX|CXXABI|GCC)_[\w.]+|_ZN?K?St\w+)|w \w+")
    lines = output("nm", "-D", "--undefined-only", PACKAGE / "_C.so").splitlines()
    found = [" ".join(line.split()[-2:]) for line in lines]
    assert [each for each in found if not allowed.fullmatch(each)] == []
    assert "U aoti_torch_get_current_cuda_stream" not in found  # weak: a torch without CUDA does not have it


@needs_binutils
def test_needed_libraries():
    dynamic = output("readelf", "--dynamic", "--wide", PACKAGE / "_C.so")
    needed = set(re.findall(r"NEEDED.*\[(.+?)\.so", dynamic))
    assert "libtorch" in needed
    system = "libc libm libdl librt libpthread libgcc_s libstdc++ ld-linux-x86-64"
    assert needed <= {"libtorch", *system.split()}
    assert not re.search("RUNPATH|RPATH", dynamic)  # a path of the machine that built it


def test_version():
    try:
        metadata = importlib.metadata.metadata("squared_relu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("is not installed")
    assert metadata["Version"] == squared_relu.__version__
    assert metadata["License-Expression"]


@pytest.mark.skipif("OTHER_PYTHON" not in os.environ, reason="OTHER_PYTHON names no other environment")
def test_other_torch(tmp_path):
    """The same values as here."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name)
    code = "import torch, squared_relu as s; x = torch.ones(3, requires_grad=True); y = s.squared_relu(x, 0.5)"
    code += "; y.sum().backward(); print(y.tolist(), x.grad.tolist(), s.__file__)"
    found = output(os.environ["OTHER_PYTHON"], "-c", code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    x = torch.ones(3, requires_grad=True)
    y = squared_relu.squared_relu(x, 0.5)
    y.sum().backward()
    assert found == f"{y.tolist()} {x.grad.tolist()} {tmp_path}/squared_relu/__init__.py\n"
