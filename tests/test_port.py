"""examples/port and examples/port_points: the patches lead from `before` to `after`, every step builds and passes the
same tests, both become one wheel by way of an sdist; and what the pages' tables say of torch's headers is so."""

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from contract import NotDifferentiable, randn

from lab import toolchain
from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
PORT, POINTS = ROOT / "examples" / "port", ROOT / "examples" / "port_points"
TESTS = {"blend": PORT / "test_blend.py", "points": POINTS / "test_points.py"}
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
    found = [path for path in folder.rglob("*") if path.suffix in (".py", ".h", ".cpp", ".cu", ".toml", ".in")]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_patches_lead_from_before_to_after(tmp_path):
    assert files(step(tmp_path / "last", len(PATCHES))) == files(PORT / "after")


@pytest.fixture(scope="module")
def wheels(run, env, once):
    """The wheels of both ports, each built from its sdist, as it is shipped; and what they hold, unpacked."""

    def make(folder):
        for source in (PORT / "after", POINTS / "after"):
            copy = shutil.copytree(source, folder / source.parent.name, ignore=leftovers)
            run("-c", "from setuptools import build_meta; build_meta.build_sdist('.')", root=copy)
            pip = ["-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", *copy.glob("*.tar.gz")]
            run(*pip, "-w", folder, root=copy, **env)
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder / "site")

    return once("wheels of the ports", make)


def assert_passes(run, tests, folder):
    tests = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", tests]
    run(*tests, root=folder, PYTHONPATH=str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_every_step_works(run, env, tmp_path, number):
    """A minute each, for torch's large headers; two with nvcc. Step 0 is `before`."""
    folder = step(tmp_path / "port", number)
    run("setup.py", "-q", "build_ext", "--inplace", root=folder, **env)
    assert_passes(run, TESTS["blend"], folder)


@pytest.mark.slow
def test_second_port_before(run, env, tmp_path):
    folder = shutil.copytree(POINTS / "before", tmp_path / "before", ignore=leftovers)
    run("setup.py", "-q", "build_ext", "--inplace", root=folder, **env)
    assert_passes(run, TESTS["points"], folder)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TESTS)
def test_wheel(run, wheels, name):
    """One for every Python (3.14t takes this tag, too). It names torch and Python, and passes the tests of `before`."""
    (wheel,) = wheels.glob(f"{name}-2.0-*.whl")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    packed = zipfile.ZipFile(wheel)
    metadata = packed.read(f"{name}-2.0.dist-info/METADATA").decode().splitlines()
    assert {"Requires-Dist: torch>=2.10", "Requires-Python: >=3.10"} <= {*metadata}
    assert {each for each in packed.namelist() if "dist-info" not in each} == {f"{name}/__init__.py", f"{name}/_C.so"}
    names = subprocess.check_output(["nm", "-D", "-u", wheels / "site" / name / "_C.so"], text=True)
    assert not re.search(r"\b_?Py[A-Z_]\w*|N2at|N3c10", names)
    # Two files have a template Accessor each, and the linker would keep one of two functions that differ only in it.
    ours = subprocess.check_output(["nm", wheels / "site" / name / "_C.so"], text=True)
    assert not re.search(r" [WV] _Z\d+\w*I8Accessor", ours)
    assert_passes(run, TESTS[name], wheels / "site")


@pytest.mark.thorough
def test_judged(run, wheels, device, tmp_path):
    """Each operator of both, by the referee, without a compiler; and vmap works, as the page says."""
    paths = os.pathsep.join(map(str, (ROOT, wheels / "site")))
    command = ["-m", "lab.referee", ROOT / "tests/specs/port.py", "--quick", "--json", tmp_path / "found.json"]
    run(*command, "--device", device, PYTHONPATH=paths)
    for operator in json.loads((tmp_path / "found.json").read_text())["operators"]:
        verdicts = {finding["check"]: finding["verdict"] for finding in operator["findings"]}
        assert verdicts["vmap"] == "right", operator["operator"]


@pytest.mark.thorough
class TestBlend(NotDifferentiable):
    """As the page says: vmap works, and derivatives by torch.func are refused."""

    function, operator, leaves, rows = "blend", "blend.blend", (0, 1), {0: 0, 1: 0}
    refuses = "setup_context|not implemented"

    def op_calls(self, inputs):
        yield self.op, (*inputs, None, 0.3)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loaded(cls, wheels):
        sys.path.insert(0, str(wheels / "site"))
        cls.lib = importlib.import_module("blend")

    def inputs(self, device):
        return [randn(4, 3, device=device), randn(3, 4, device=device).t()]

    def wrong(self, inputs):
        _, b = inputs
        return {"b has another shape": {1: b[1:]}, "b has another dtype": {1: b.double()}}

    test_freed_memory = None  # page 3 has that check; the port keeps what the old code had

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
class TestGroup(NotDifferentiable):
    """Of examples/port_points."""

    test_freed_memory = None  # as for blend

    function, operator, leaves, rows = "group", "points.group", (0,), {0: 1}
    refuses = "setup_context|not implemented"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loaded(cls, wheels):
        sys.path.insert(0, str(wheels / "site"))
        cls.lib = importlib.import_module("points")

    def inputs(self, device):
        index = torch.tensor([[[0, 2], [1, 2], [0, 0]], [[2, 2], [1, 0], [2, 1]]], dtype=torch.int32, device=device)
        return [randn(2, 5, 4, device=device).movedim(1, 2).contiguous().movedim(1, 2), index]

    def op_calls(self, inputs):
        _, index = inputs
        yield self.op, inputs
        yield torch.ops.points.group_backward, (randn(2, 5, 3, 2, device=index.device).requires_grad_(), index, 4)
        xyz, centers = randn(2, 7, 3, device=index.device), randn(3, 2, 3, device=index.device).movedim(0, 1)
        yield torch.ops.points.farthest, (xyz, 3)
        yield torch.ops.points.ball, (xyz, centers, 1.0, 4)
        yield torch.ops.points.nearest, (xyz, centers)

    def wrong(self, inputs):
        features, index = inputs
        return {"shape": {0: features[0]}, "int32": {1: index.long()}}

    def test_second_derivative(self, device):
        features, index = self.inputs(device)
        assert torch.autograd.gradgradcheck(lambda x: self.lib.group(x, index), features.double().requires_grad_())

    @pytest.mark.inductor
    def test_model(self, device):
        """All operators in one graph; the searches have no gradient, compiled or not."""

        def model(xyz, features):
            centers = xyz.gather(1, self.lib.farthest(xyz, 6).long()[..., None].expand(-1, -1, 3))
            near, (distance, index) = self.lib.ball(xyz, centers, 1.0, 3), self.lib.nearest(xyz, centers)
            return self.lib.group(features, near).amax(-1) * distance[..., 0][:, None], index

        xyz, features = randn(2, 50, 3, device=device).requires_grad_(), randn(2, 4, 50, device=device).requires_grad_()
        for found, right in zip(torch.compile(model, fullgraph=True)(xyz, features), model(xyz, features), strict=True):
            self.assert_close(found, right)
            assert found.requires_grad == right.requires_grad == right.is_floating_point()
        assert not self.lib.nearest(xyz, xyz)[0].requires_grad


@pytest.mark.thorough
@pytest.mark.parametrize("target", [["-DTORCH_TARGET_VERSION=0x020a000000000000"], []], ids=["2.10", "newest"])
def test_new_names_compile(target):
    command = ["c++", "-std=c++20", "-fsyntax-only", *target, "-isystem"]
    subprocess.run([*command, Path(torch.__file__).parent / "include", PORT / "names.cpp"], check=True)


def test_table_is_compiled():
    """Each new name and header of the tables is in a file that a test compiles."""
    text = "".join((PORT / name).read_text() for name in ("names.cpp", "names.cu", "schema_types.cpp"))
    rows = re.findall(r"^\| (?:`|2\.).*?\| (.*?) \| (.*?) \| .*?\|.*\|$", TABLES, re.MULTILINE)
    names = [name for new, _ in rows for name in re.findall(r"`(?:\w+::)*(\w+)", new)]
    headers = [path for _, header in rows for path in re.findall(r"`(\S+\.h)`", header)]
    assert len(rows) >= 45
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
    assert [path for path in headers if f"{path}>" not in text] == []


def test_shown_differences_are_in_the_patches():
    lines = {line for patch in PATCHES for line in patch.read_text().splitlines()}
    blocks = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert {line for block in blocks for line in block.splitlines()} <= lines
