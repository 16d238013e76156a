"""examples/port: the patches lead from `before` to `after`, every step builds and passes the same tests, and the names
of the page's table are in torch's headers."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contract import NotDifferentiable, randn

from lab import toolchain
from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
PORT = ROOT / "examples" / "port"
PAGE, TABLES = ((ROOT / "docs" / name).read_text() for name in ("20_port.md", "stable.md"))
PATCHES = sorted((PORT / "steps").glob("*.patch"))


@pytest.fixture(scope="module")
def env():
    """The toolkit; and, as ATen's CUDA headers include those of cuSPARSE and others, these from torch's packages."""
    names = ("ADD2_WITH_CUDA", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
    found = {name: value for name, value in toolchain.environment().items() if name in names}
    found["CFLAGS"] = "-O0 -g0"  # torch's large headers take long enough
    spec = importlib.util.find_spec("nvidia") if torch.version.cuda else None
    for folder in spec.submodule_search_locations if spec else []:
        found["CPATH"] = os.pathsep.join(map(str, Path(folder).glob("cu*/include")))
    return found


def step(folder, number):
    """A copy of `before` with that many patches applied."""
    shutil.copytree(PORT / "before", folder, ignore=leftovers)
    for patch in PATCHES[:number]:
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True, env=os.environ | {"GIT_DIR": str(folder)})
    return folder


def files(folder):
    found = [path for path in folder.rglob("*") if path.suffix in (".py", ".h", ".cpp", ".cu")]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_patches_lead_from_before_to_after(tmp_path):
    assert files(step(tmp_path / "last", len(PATCHES))) == files(PORT / "after")


@pytest.fixture(scope="module")
def after(run, env, once):
    """The last step, built."""

    def make(folder):
        run("setup.py", "-q", "build_ext", "--inplace", root=step(folder, len(PATCHES)), **env)

    return once("the last step", make)


def assert_passes(run, folder):
    tests = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", PORT / "test_blend.py"]
    run(*tests, root=folder, PYTHONPATH=str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_every_step_works(run, env, tmp_path, number):
    """A minute each, for torch's large headers; two with nvcc. Step 0 is `before`."""
    folder = step(tmp_path / "port", number)
    run("setup.py", "-q", "build_ext", "--inplace", root=folder, **env)
    assert_passes(run, folder)


@pytest.mark.thorough
def test_last_step(run, env, after):
    """It passes the same tests, and makes one wheel for every Python."""
    assert_passes(run, after)
    run("setup.py", "-q", "bdist_wheel", root=after, **env)
    (wheel,) = (after / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")  # which 3.14t takes, too
    library = next((after / "build").rglob("_C.so"))
    assert not re.search(r"\b_?Py[A-Z_]\w*", subprocess.check_output(["nm", "-D", "-u", library], text=True))


@pytest.mark.thorough
class TestBlend(NotDifferentiable):
    """As the page says: vmap works, and derivatives by torch.func are refused."""

    function, operator, leaves, rows = "blend", "blend.blend", (0, 1), {0: 0, 1: 0}
    refuses = "setup_context|not implemented"

    def op_calls(self, inputs):
        yield self.op, (*inputs, None, 0.3)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loaded(cls, after):
        sys.path.insert(0, str(after))
        cls.lib = importlib.import_module("blend")

    def inputs(self, device):
        return [randn(4, 3, device=device), randn(3, 4, device=device).t()]

    def wrong(self, inputs):
        _, b = inputs
        return {"b has another shape": {1: b[1:]}, "b has another dtype": {1: b.double()}}

    def test_scalar(self):
        with pytest.raises(TypeError, match="expected a number"):
            self.lib.blend(*self.inputs("cpu"), None, torch.tensor(0.1, requires_grad=True))


class TestSumList(TestBlend):
    operator = "blend.sum_list"

    def call(self, *tensors):
        return self.lib.sum_list(list(tensors))

    def op_calls(self, inputs):
        yield self.op, (list(inputs),)

    def wrong(self, inputs):
        return {"another shape": {1: inputs[1][1:]}, "another dtype": {1: inputs[1].double()}}

    test_scalar = None


@pytest.mark.thorough
@pytest.mark.parametrize("target", [["-DTORCH_TARGET_VERSION=0x020a000000000000"], []], ids=["2.10", "newest"])
def test_new_names_compile(target):
    command = ["c++", "-std=c++20", "-fsyntax-only", *target, "-isystem"]
    subprocess.run([*command, Path(torch.__file__).parent / "include", PORT / "names.cpp"], check=True)


def test_table_is_compiled():
    """Each new name and header of the two tables is in names.cpp."""
    text = (PORT / "names.cpp").read_text()
    rows = re.findall(r"^\| (?:`|2\.).*?\| (.*?) \| (.*?) \| .*?\|.*\|$", TABLES, re.MULTILINE)
    names = [name for new, _ in rows for name in re.findall(r"`(?:\w+::)*(\w+)", new)]
    headers = [path for _, header in rows for path in re.findall(r"`(\S+\.h)`", header)]
    assert len(rows) >= 23
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
    assert [path for path in headers if f"{path}>" not in text] == []


def test_shown_differences_are_in_the_patches():
    lines = {line for patch in PATCHES for line in patch.read_text().splitlines()}
    blocks = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert {line for block in blocks for line in block.splitlines()} <= lines
