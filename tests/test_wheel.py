"""One wheel is shipped. Its content here; and, with `--all -m slow`, the same file in many environments."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("numpy", "ninja", "pytest", "pytest-xdist", "expecttest", "setuptools")

pytestmark = pytest.mark.thorough


def output(*command, **options):
    return subprocess.check_output([*map(str, command)], text=True, **options)


@pytest.fixture(scope="module")
def wheel(request, tmp_path_factory):
    """Built from a source distribution, as it is shipped."""
    if ready := request.config.getoption("--wheel"):
        return Path(ready).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "copy", ignore=leftovers)
    code = "from setuptools import build_meta; build_meta.build_sdist('..')"
    output(sys.executable, "-c", code, cwd=folder / "copy")
    [sdist] = folder.glob("*.tar.gz")
    output(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", sdist, "-w", folder / "wheel")
    [wheel] = (folder / "wheel").iterdir()
    return wheel


def test_content(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "-py3-none-linux_" in wheel.name
    python = {f"add2/{path.name}" for path in (ROOT / "add2").glob("*.py")} | {"add2/py.typed"}
    information = wheel.name.split("-py3")[0] + ".dist-info"
    assert {name for name in names if not name.startswith(information)} == python | {"add2/_C.abi3.so"}
    assert wheel.stat().st_size < 2**21
    metadata = zipfile.ZipFile(wheel).read(f"{information}/METADATA").decode().splitlines()
    assert {"Requires-Dist: torch>=2.10", "Requires-Python: >=3.10", "License-Expression: MIT"} <= set(metadata)


def test_library(wheel, tmp_path):
    """It needs only torch and the system, no Python, so one file serves every Python; it shows only the launchers."""
    library = zipfile.ZipFile(wheel).extract("add2/_C.abi3.so", tmp_path)
    dynamic = output("readelf", "--dynamic", "--wide", library)
    needed = set(re.findall(r"NEEDED.*\[(.+?)\.so", dynamic))
    system = {"libc", "libm", "libdl", "librt", "libpthread", "ld-linux-x86-64", "libgcc_s", "libstdc++"}
    assert needed <= {"libtorch", *system}
    assert not re.search("RUNPATH|RPATH", dynamic)  # no path of the machine that built it
    symbols = output("nm", "-D", "--undefined-only", library).split()
    assert [name for name in symbols if name.startswith(("Py", "_Py"))] == []
    shown = [line.split()[1:] for line in output("nm", "-D", "--defined-only", library).splitlines()]
    standard = re.compile("_ZN?K?St")  # the standard library's templates are weak, and shown by every library
    functions = {name for kind, name in shown if kind in "TW" and not standard.match(name)}
    assert functions - {"launch_add2_cuda"} == {"launch_add2_cpu"}


def test_installed(run, wheel, tmp_path):
    """`import add2` from anywhere, nothing else loaded before."""
    run("-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", wheel)
    code = "import add2, torch; x = torch.ones(3); print(add2.add2(x, x).tolist(), add2.__file__)"
    found = run("-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")).stdout
    assert found == f"[2.0, 2.0, 2.0] {tmp_path}/site/add2/__init__.py\n"


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14", "3.14t"])
@pytest.mark.parametrize("torch", ["torch==2.10.*", "torch==2.11.*", "torch==2.13.0", "torch"])
def test_everywhere(torch, python, wheel, tmp_path):
    """The same file in a fresh environment: all tests of the operator, its Python part included."""
    if shutil.which(f"python{python}") is None:
        pytest.skip(f"needs python{python}")
    output(f"python{python}", "-m", "venv", tmp_path / "venv")
    own = tmp_path / "venv/bin/python"
    output(own, "-m", "pip", "install", "-q", torch, *TOOLS, wheel)
    for name in ("lab", "tests", "kernel", "include", "pyproject.toml"):  # but not add2/: it is installed
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    library = output(own, "-c", "import add2; print(add2.__path__[0])", cwd=tmp_path).strip() + "/_C.abi3.so"
    print(output(own, "-m", "pytest", "-q", "tests/operator", "--library", library, cwd=tmp_path).splitlines()[-1])
    shutil.rmtree(tmp_path / "venv")  # GBs
