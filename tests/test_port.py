"""examples/port: the patches lead from `before` to `after`, every step builds and passes the same tests, and the names
of the page's table are in torch's headers."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging import tags

from lab import toolchain

ROOT = Path(__file__).resolve().parent.parent
PORT = ROOT / "examples" / "port"
PAGE = (ROOT / "docs" / "4_port.md").read_text()
PATCHES = sorted((PORT / "steps").glob("*.patch"))
HEADERS = Path(torch.__file__).parent / "include"


def step(folder, number):
    """A copy of `before` with that many patches applied."""
    shutil.copytree(
        PORT / "before", folder, ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info", "__pycache__")
    )
    for patch in PATCHES[:number]:
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True, env=os.environ | {"GIT_DIR": str(folder)})
    return folder


def files(folder):
    found = [path for path in folder.rglob("*") if path.suffix in (".py", ".h", ".cpp", ".cu")]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def python(*arguments, cwd, **env):
    # ATen's CUDA headers include those of cuSPARSE and others, which a small toolkit lacks, and torch's packages have.
    folders = importlib.util.find_spec("nvidia").submodule_search_locations if torch.version.cuda else []
    includes = [str(path) for folder in folders for path in Path(folder).glob("cu*/include")]
    env = toolchain.environment() | env
    if includes:
        env["CPATH"] = os.pathsep.join(includes)
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_patches_lead_from_before_to_after(tmp_path):
    assert files(step(tmp_path / "last", len(PATCHES))) == files(PORT / "after")


SLOW = [pytest.mark.thorough, pytest.mark.wheels]  # a minute each, for torch's large headers


@pytest.mark.parametrize("number", [pytest.param(n, marks=SLOW if n else SLOW[0]) for n in range(7)] + [7])
def test_every_step_works(tmp_path, number):
    """Step 0 is `before`, the last one is `after`."""
    folder = step(tmp_path / "port", number)
    python("setup.py", "-q", "build_ext", "--inplace", cwd=folder)
    tests = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", str(PORT / "test_blend.py")]
    python(*tests, cwd=folder, PYTHONPATH=str(folder))


def test_one_wheel_for_every_python(tmp_path):
    folder = step(tmp_path / "port", len(PATCHES))
    python("setup.py", "-q", "bdist_wheel", cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    tag = wheel.stem.split("-", 2)[2]
    for minor in range(10, 15):
        assert tag in map(str, tags.compatible_tags((3, minor), platforms=["linux_x86_64"]))  # 3.14t has these, too
    library = next((folder / "build").rglob("_C.so"))
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"\b_?Py[A-Z_]\w*", symbols)


@pytest.mark.parametrize("target", [["-DTORCH_TARGET_VERSION=0x020a000000000000"], []], ids=["2.10", "newest"])
def test_new_names_compile(target):
    command = ["c++", "-std=c++20", "-fsyntax-only", *target, "-isystem", str(HEADERS), str(PORT / "names.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_table_is_compiled():
    """Each new name and header of the table is in names.cpp."""
    names = (PORT / "names.cpp").read_text()
    rows = re.findall(r"^\| `.*?\| (.*?) \| (.*?) \| .*?\|.*\|$", PAGE, re.MULTILINE)
    assert len(rows) >= 15
    for new, header in rows:
        for name in re.findall(r"`(?:\w+::)*(\w+)", new):
            assert re.search(rf"\b{name}\b", names), name
        for path in re.findall(r"`(\S+\.h)`", header):
            assert f"{path}>" in names, path


def test_shown_differences_are_in_the_patches():
    lines = {line for patch in PATCHES for line in patch.read_text().splitlines()}
    for block in re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            assert line in lines, line
