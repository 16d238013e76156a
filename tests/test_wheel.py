"""One wheel is shipped. Its content here; and, with `-m wheels`, the same file in many environments."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.thorough

# Pythons and torches to prove it with: those that are installed, and can be had.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCHES = ("torch==2.10.*", "torch==2.11.*", "torch==2.13.0", "torch")


def pip(*arguments, python=sys.executable):
    command = [python, "-m", "pip", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the project as it is shipped: the content of a source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=leftovers)
    command = [sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('..')"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subprocess.run(["tar", "-xzf", next(folder.glob("add2-*.tar.gz")), "-C", folder], check=True)
    return next(path for path in folder.glob("add2-*") if path.is_dir())


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--no-deps", source, "-w", folder)
    [wheel] = folder.iterdir()
    return wheel


@pytest.fixture(scope="module")
def library(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder / "add2" / "_C.abi3.so"


def test_content(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "-cp310-abi3-linux_" in wheel.name
    assert {f"add2/{name}" for name in ("__init__.py", "ops.py", "function.py", "py.typed", "_C.abi3.so")} <= names
    assert {name.split("/")[0] for name in names} == {"add2", wheel.name.split("-cp310")[0] + ".dist-info"}
    assert len([name for name in names if name.endswith(".so")]) == 1
    assert wheel.stat().st_size < 2 * 2**20


def test_metadata(wheel):
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    metadata = zipfile.ZipFile(wheel).read(f"add2-{version}.dist-info/METADATA").decode()
    assert f"\nVersion: {version}\n" in metadata
    assert "\nRequires-Dist: torch>=2.10\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nLicense-Expression: MIT\n" in metadata


def test_library_needs_only_torch_and_the_system(library):
    dynamic = subprocess.run(["readelf", "--dynamic", "--wide", library], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[(.+?)\.so", dynamic.stdout))
    assert needed <= {
        "libtorch",
        "libstdc++",
        "libgcc_s",
        "libc",
        "libm",
        "libdl",
        "librt",
        "libpthread",
        "ld-linux-x86-64",
    }
    assert "RUNPATH" not in dynamic.stdout
    assert "RPATH" not in dynamic.stdout


def test_library_shows_only_the_launchers(library):
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    shown = [(name, kind) for _, kind, name in map(str.split, symbols.stdout.splitlines())]
    standard = re.compile("_ZN?K?St")  # the standard library's templates are weak, and shown by every library
    functions = {name for name, kind in shown if kind in "TW" and not standard.match(name)}
    launchers = {"launch_add2_cpu"}
    cuda = {"launch_add2_cuda", "launch_add2_cuda_kernel"}
    assert functions in (launchers, launchers | cuda)


def test_installed(wheel, tmp_path, run):
    """`import add2` from anywhere, nothing else loaded before."""
    site = tmp_path / "site"
    pip("install", "-q", "--no-deps", "--target", site, wheel)
    code = "import add2, torch; x = torch.ones(3); print(add2.add2(x, x).tolist(), add2.__file__)"
    done = run("-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.stdout.startswith("[2.0, 2.0, 2.0]")
    assert str(site) in done.stdout


def test_auditors_agree(wheel):
    """abi3audit: of Python's functions only those of the stable ABI; auditwheel: which Linux it runs on."""
    for tool in ("abi3audit", "auditwheel"):
        if shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None:
            pytest.skip(f"needs {tool}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path}
    audit = subprocess.run(["abi3audit", "--strict", wheel], env=env, capture_output=True, text=True, check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    shown = subprocess.run(["auditwheel", "show", wheel], env=env, capture_output=True, text=True, check=True)
    assert re.search(r"manylinux_2_\d+_x86_64", shown.stdout), shown.stdout


def test_ready_library(library, run, tmp_path):
    """time.py and train.py with a library that is ready: nothing is built."""
    cache = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    done = run("time.py", "--library", library, "--device", "cpu", "--sizes", "100", **cache)
    assert "add2 by library" in done.stdout
    assert done.stderr == ""
    assert "epoch   0" in run("train.py", "--library", library, "--device", "cpu", "--epochs", "1", **cache).stdout
    assert not list(tmp_path.iterdir())
    assert "there is no file" in run("time.py", "--library", "no.so", status=2).stderr


def python_of(version):
    """Where this Python is, or None. What is on PATH may be a switch (of pyenv, say) to a Python that is not there."""
    found = [shutil.which(f"python{version}"), *Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python3")]
    runs = [path for path in found if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]
    return runs[-1] if runs else None


@pytest.fixture
def environment(tmp_path):
    """A folder for a virtual environment; removed, as pytest keeps its own folders, and a torch takes GBs."""
    yield tmp_path / "environment"
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


@pytest.mark.wheels
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("requirement", TORCHES)
def test_everywhere(requirement, python, wheel, tmp_path, environment):
    """The very same file, in a fresh environment: all tests of the operator, with its Python part, too."""
    interpreter = python_of(python)
    if interpreter is None:
        pytest.skip(f"needs Python {python}")
    subprocess.run([interpreter, "-m", "venv", environment], check=True)
    command = [environment / "bin" / "python", "-m", "pip", "install", "-q"]
    command += [requirement, "numpy", "ninja", "pytest", "hypothesis", "expecttest", "setuptools"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr:
        pytest.skip(f"{requirement} is not to be had for Python {python}")
    assert done.returncode == 0, done.stderr
    pip("install", "-q", "--no-deps", wheel, python=environment / "bin" / "python")
    for name in ("lab", "tests", "pyproject.toml", "setup.py", "kernel", "include"):  # but not add2/: it is installed
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    where = "import add2; print(add2.__file__.replace('__init__.py', '_C.abi3.so'))"
    python = environment / "bin" / "python"
    library = subprocess.run([python, "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(environment) in library.stdout
    command = [python, "-m", "pytest", "-q", "tests/operator", "--library", library.stdout.strip()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    print(f"torch {version.stdout.strip()}, {interpreter}:", done.stdout.splitlines()[-1])
