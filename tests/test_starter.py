"""examples/starter, as a reader uses it: copied out of the project and renamed, it builds and passes its tests."""

import functools
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
import torch
from contract import FLOATS, Differentiable, randn

from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
STARTER = ROOT / "examples" / "starter"
OWN_TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
ONLY_CPU = {"PATH": os.defpath, "CUDA_HOME": "none", "TORCH_CUDA_ARCH_LIST": ""}  # with a torch that has CUDA, too


@pytest.fixture
def project(tmp_path):
    return Path(shutil.copytree(STARTER, tmp_path / "a copy", ignore=leftovers))


@pytest.fixture
def python(run, project):
    """Run Python in the copy. The nvcc on PATH is all that the starter gets to know about CUDA."""
    path = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
    return functools.partial(run, root=project, drop=("CUDA_HOME", "CUDA_PATH"), PATH=path)


@pytest.fixture
def cpu_build(python):
    """Build in place, with a torch that has CUDA as well, only the CPU's part: it compiles in seconds."""
    return functools.partial(python, "setup.py", "-q", "build_ext", "--inplace", **ONLY_CPU)


@pytest.fixture(scope="module")
def built(run, once):
    """A copy in which it is built, for all tests that do not edit it; where no GPU is, only the CPU's part."""

    def make(folder):
        shutil.copytree(STARTER, folder, ignore=leftovers)
        run("setup.py", "-q", "build_ext", "--inplace", root=folder, **({} if torch.cuda.is_available() else ONLY_CPU))

    return once("a built starter", make)


def contents(folder):
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name}: {old}"
    path.write_text(text.replace(old, new))


def test_it_stands_alone(project):
    files = contents(project)
    assert not re.search(r"\badd2|\blab\b|\.\./(?!my_op)", "".join(files.values()))


@pytest.mark.thorough
@pytest.mark.anywhere
def test_rename(project, monkeypatch, capsys):
    """A name that would not work is refused, and then nothing is changed. A good one is everywhere afterwards."""

    def rename(name, folder=project):
        monkeypatch.setattr(sys, "argv", ["rename.py", name])
        runpy.run_path(folder / "rename.py")  # in this process, which has imported torch

    before = contents(project)
    names = ("", "double", "torch", "json", "while", "tests", "formula", "My_op", "my-op", "a__b", "_x", "2x")
    wrong = dict.fromkeys(names, r"rename\.py: ")
    wrong |= dict.fromkeys(("aten", "quantized", "prims", "prim"), "a namespace of torch's own")  # defined only once
    for name, words in wrong.items():
        with pytest.raises(SystemExit, match=words):
            rename(name)
    assert contents(project) == before
    with pytest.raises(SystemExit, match="copy the folder first"):
        rename("my_op", STARTER)
    rename("first_name")
    capsys.readouterr()
    wheel, library = project / "first_name-0.1.0.whl", project / "src/first_name/_C.abi3.so"
    for path in (wheel, library):  # what was built under that name
        path.write_bytes(b"PK\0first_name")
    rename(name := "softmax2")
    said = capsys.readouterr().out
    assert wheel.read_bytes() == b"PK\0first_name"
    assert list(project.rglob("*.so")) == []
    wheel.unlink()
    after = contents(project)
    for path, text in after.items():  # every file that has the name was named, and no other one
        count = text.count("softmax2")
        line = f"  {count:3} times in {path}\n"
        assert (line in said) == (count > 0 or "softmax2" in path.name), path
    readme = after.pop(Path("README.md"))
    assert "softmax2" in readme
    assert not re.search(r"squared_relu|starter|rename\.py|\n\n\n", readme)  # nothing is left to copy and rename
    renamed = {Path(str(path).replace("squared_relu", name)): text for path, text in before.items()}
    del renamed[Path("README.md")]
    assert after == {path: text.replace("squared_relu", name) for path, text in renamed.items()}


def test_names_are_free(project):
    """The code names what it takes from torch, so a type of the reader's own is not ambiguous."""
    source = project / "csrc" / "squared_relu.cpp"
    names = ("Layout", "DeviceType", "MemoryFormat")
    own = "".join(f"struct {x} {{ int rows; }};\nint rows({x} own) {{ return own.rows; }}\n" for x in names)
    edit(source, "using torch::stable::Tensor;\n", f"using torch::stable::Tensor;\n{own}")
    include = Path(torch.__file__).parent / "include"
    subprocess.run(["c++", "-std=c++17", "-fsyntax-only", "-I", include, source], check=True)


def test_workflow(project):
    """The file that GitHub reads is YAML, and tests on the oldest torch that pyproject.toml names."""
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    assert all(job["steps"] for job in workflow["jobs"].values())
    oldest, newest = (row["torch"] for row in workflow["jobs"]["test"]["strategy"]["matrix"]["include"])
    assert f'"torch>={oldest.removeprefix("torch==").removesuffix(".0")}"' in (project / "pyproject.toml").read_text()
    assert newest == "torch"


class Built(Differentiable):
    rows = {0: 0, 1: 0}  # noqa: RUF012

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loaded(cls, built):
        sys.path.insert(0, str(built / "src"))
        cls.lib = importlib.import_module("squared_relu")


@pytest.mark.thorough
class TestSquaredRelu(Built):
    operator, leaves, rows = "squared_relu.squared_relu", (0,), {0: 0}

    def call(self, x):
        return self.lib.squared_relu(x, 0.5)

    def op_calls(self, inputs):
        yield self.op, (*inputs, 0.5)

    def by_torch(self, x):
        return 0.5 * torch.relu(x) ** 2

    def inputs(self, device):
        return [randn(3, 4, device=device).t()]

    def wrong(self, inputs):
        (x,) = inputs
        return {"no kernel for Int": {0: x.int()}, "x is None": {0: None}, "no kernel for Complex": {0: x.cfloat()}}

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("factor", [1e-4, 1, 60000])  # in float16 y is 0 for the first and infinite for the last
    def test_derivatives_in_the_kernels_precision(self, dtype, factor, device):
        """Autograd's gradient (a kernel) and that of torch.func (torch's own functions) have the same bits."""
        x, grad = (factor * torch.randn(20000, dtype=torch.float64)).to(device, dtype), torch.rand(20000).to(device)
        grad, x = grad.to(dtype), x.requires_grad_()

        def f(x):
            return self.lib.squared_relu(x, 0.25)

        def tangent(x, grad):  # of a function that works element by element: the gradient
            return torch.func.jvp(f, (x,), (grad,))[1]

        y, gradient = torch.func.vjp(f, x.detach())
        assert torch.equal(f(x), y)
        found = torch.autograd.grad(f(x), x, grad)[0]
        assert found.count_nonzero() > 9000  # also where y is 0
        others = gradient(grad)[0], tangent(x.detach(), grad), torch.compile(tangent, fullgraph=True)(x.detach(), grad)
        assert all(torch.equal(found, other) for other in others)


@pytest.mark.thorough
class TestBackward(Built):
    operator, leaves = "squared_relu.squared_relu_backward", (0, 1)
    test_vmap_refuses = None  # it refuses, and names the shapes of the whole batch

    def call(self, grad, x):
        return self.op(grad, x, 0.5)

    def op_calls(self, inputs):
        yield self.op, (*inputs, 0.5)

    def by_torch(self, grad, x):
        return grad * torch.relu(x)

    def inputs(self, device):
        return [randn(4, 3, device=device), randn(3, 4, device=device).t()]

    def wrong(self, inputs):
        grad, x = inputs
        shape = r"grad has shape \[4, 3\], expected \[3, 3\]"
        return {"grad is Double": {0: grad.double()}, shape: {1: x[1:]}, "grad is None": {0: None}}


def program(expression):
    """Its value is printed, with x [-1, 1, 2] and f = squared_relu(x, 1); g is its gradient, which has a graph."""
    lines = (
        "import torch, squared_relu as s",
        "x = torch.tensor([-1., 1., 2.], requires_grad=True)",
        "y = s.squared_relu(x)",
    )
    lines += ("g, = torch.autograd.grad(y.sum(), x, create_graph=True)", f"print({expression})")
    return "\n".join(lines)


@pytest.mark.thorough
@pytest.mark.anywhere
class TestSwitches:
    """Lines of __init__.py that a reader exchanges."""

    @pytest.fixture
    def package(self, project, built):
        shutil.copy(built / "src" / "squared_relu" / "_C.so", project / "src" / "squared_relu")
        return project / "src" / "squared_relu" / "__init__.py"

    def take(self, package, commented):
        """The comment becomes code, and the registration next to it a comment."""
        lines = package.read_text().splitlines()
        [i] = [i for i, line in enumerate(lines) if line.startswith(f"# {commented}")]
        [other] = [j for j in (i - 1, i + 1) if lines[j : j + 1] and lines[j].startswith("register_derivatives")]
        lines[i], lines[other] = lines[i].removeprefix("# "), f"# {lines[other]}"
        imports = "from .derivatives import is_tangent_hidden, register_derivatives"
        lines[lines.index(imports)] = f"{imports}, refuse_derivatives"
        package.write_text("\n".join(lines) + "\n")

    def test_second_derivative(self, python, package):
        """d2y/dx2 = 2 * scale where x > 0; so d(x^2 + g^2)/dx = 2x + 2g * 2."""
        loss = "torch.autograd.grad((x**2 + g**2).sum(), x)[0].tolist()"
        assert "[-2.0, 10.0, 20.0]" in python("-c", program(loss), PYTHONPATH="src").stdout
        self.take(package, "refuse_derivatives")
        tests = package.parents[2] / "tests" / "test_squared_relu.py"
        edit(tests, "    assert torch.autograd.gradgradcheck(squared_relu, (x, 0.7))\n", "")
        text = tests.read_text()
        tests.write_text(re.sub(r"^    # (with pytest|    torch.autograd)", r"    \1", text, flags=re.MULTILINE))
        python(*OWN_TESTS, "-k", "test_squared_relu and not kernel", PYTHONPATH="src")
        assert "[0.0, 2.0, 4.0]" in python("-c", program("g.tolist()"), PYTHONPATH="src").stdout
        done = python("-c", program(loss), PYTHONPATH="src", status=None)
        assert "RuntimeError: squared_relu has no second derivative" in done.stderr
        assert "20.0" not in done.stdout
        hessian = "torch.func.hessian(lambda x: s.squared_relu(x).sum())(x).diagonal().tolist()"
        assert "[0.0, 2.0, 2.0]" in python("-c", program(hessian), PYTHONPATH="src").stdout

    def test_short_form(self, python, package):
        """All that it has; and what page 5 says that it has not."""
        self.take(package, "torch.library.register_autograd")
        python(*OWN_TESTS, "-k", "test_squared_relu and not derivatives and not kernel", PYTHONPATH="src")
        loss = "torch.autograd.grad((x**2 + g**2).sum(), x)[0].tolist()"
        assert "[-2.0, 10.0, 20.0]" in python("-c", program(loss), PYTHONPATH="src").stdout
        jvp = "torch.func.jvp(s.squared_relu, (x.detach(),), (x.detach(),))[1].tolist()"
        assert "[0.0, 0.0, 0.0]" in python("-c", program(jvp), PYTHONPATH="src").stdout
        grad = "torch.func.grad(lambda x: s.squared_relu(x).sum())(x.detach())"
        assert "setup_context" in python("-c", program(grad), PYTHONPATH="src", status=None).stderr


class TestDerivatives:
    """register_derivatives, for operators of other forms than squared_relu."""

    @pytest.fixture(scope="class")
    @classmethod
    def ops(cls):
        derivatives = runpy.run_path(STARTER / "src" / "squared_relu" / "derivatives.py")
        cls.registry = torch.library.Library("starter_forms", "DEF")
        cls.registry.define("pick(Tensor a, Tensor? b, str mode) -> (Tensor, Tensor)")
        cls.registry.define("total(Tensor[] xs) -> Tensor")

        def pick(a, b, mode):
            y = a * (2 if mode == "double" else 3)
            return y if b is None else y * b, y.detach().square()

        def save(ctx, inputs, output):
            a, b, ctx.mode = inputs
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(a, b)

        def backward(ctx, grad, _):
            a, b = ctx.saved_tensors
            factor = 2 if ctx.mode == "double" else 3
            of_a = None
            if ctx.needs_input_grad[0]:
                of_a = grad * factor * (1 if b is None else b)
            return of_a, grad * factor * a if ctx.needs_input_grad[1] else None, None

        cls.registry.impl("pick", pick, "CompositeExplicitAutograd")
        cls.registry.impl("total", sum, "CompositeExplicitAutograd")
        ops = torch.ops.starter_forms
        derivatives["register_derivatives"](ops.pick.default, pick, backward, setup_context=save)
        derivatives["register_derivatives"](ops.total.default, sum)
        return ops

    def test_two_results_and_an_optional_tensor(self, ops):
        a, b = torch.randn(2, 3, dtype=torch.float64).requires_grad_().unbind()
        assert not ops.pick(a, b, "double")[1].requires_grad
        for mode in ("double", "triple"):
            assert torch.autograd.gradcheck(
                lambda a, b, mode=mode: ops.pick(a, b, mode)[0], (a, b), check_forward_ad=True
            )
            assert torch.autograd.gradcheck(
                lambda a, mode=mode: ops.pick(a, None, mode)[0], (a,), check_forward_ad=True
            )
        found = torch.autograd.grad(ops.pick(a, b.detach(), "double")[0].sum(), a)
        torch.testing.assert_close(found[0], 2 * b.detach())
        found = torch.func.hessian(lambda a: ops.pick(a, a, "double")[0].sum())(a.detach())
        torch.testing.assert_close(found, 4 * torch.eye(3, dtype=torch.float64))

    def test_list(self, ops):
        """Refused at the first call, not when a gradient is lost."""
        with pytest.raises(TypeError, match="takes a list of tensors: use register_autograd"):
            ops.total([torch.ones(2), torch.ones(2)])


@pytest.mark.thorough
def test_gpus_that_cannot_be_compiled_for(python):
    """A wheel without the GPU code that was asked for would have the same name."""
    command = ("setup.py", "-q", "build_ext", "--inplace")
    done = python(*command, status=1, PATH=os.defpath, CUDA_HOME="none", TORCH_CUDA_ARCH_LIST="9.0")
    assert "TORCH_CUDA_ARCH_LIST is set, but" in done.stderr


@pytest.mark.thorough
def test_failed_build_leaves_no_library(python, project, built):
    shutil.copytree(built, project, dirs_exist_ok=True)
    python("-c", "import squared_relu", PYTHONPATH="src")
    edit(project / "csrc" / "squared_relu.cpp", 'check("x", x_in);\n  const', 'mistake(); check("x", x_in);\n  const')
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    assert subprocess.run(command, cwd=project, capture_output=True, check=False).returncode != 0
    code = "try: import squared_relu\nexcept ImportError as error: print(error)"
    assert "_C.so is missing: run `python3 setup.py" in python("-c", code, PYTHONPATH="src").stdout
    assert "there is no library yet" in python("to_hub.py", status=1).stderr


@pytest.mark.thorough
@pytest.mark.anywhere
def test_edits_and_debug_build(python, project, cpu_build):
    """An edit of the header, and another flag, are noticed; a debug build is for debuggers."""

    def sections():
        return subprocess.check_output(["readelf", "-S", project / "src/squared_relu/_C.so"], text=True)

    cpu_build()
    assert "debug_info" not in sections()
    edit(project / "csrc" / "squared_relu.h", "? Wide(0) : x", "? Wide(7) : x")
    cpu_build(DEBUG="1")
    assert "debug_info" in sections()
    assert "[49.0, 1.0, 4.0]" in python("-c", program("y.tolist()"), PYTHONPATH="src").stdout


@pytest.mark.thorough
def test_editable(python, project, tmp_path):
    """In a virtual environment that sees the packages of this one. `python3 -m pytest` looks there first."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    words = ("-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "-e", ".")
    path = ONLY_CPU | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for arguments in (words, (*OWN_TESTS, "-k", "(values or strides) and cpu")):
        command = [tmp_path / "venv" / "bin" / "python", *arguments]
        done = subprocess.run(command, cwd=project, env=os.environ | path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not (site / "squared_relu").exists()


@pytest.mark.thorough
@pytest.mark.skipif(" fma " not in Path("/proc/cpuinfo").read_text(), reason="needs a CPU that fuses product and sum")
def test_tolerance_allows_fused_product_and_sum(python, project, cpu_build):
    """A formula with a product and a sum, compiled as nvcc does by default: the reader's tests pass."""
    header, tests = project / "csrc" / "squared_relu.h", project / "tests" / "test_squared_relu.py"
    edit(
        header, "const Wide kept = x <= 0 ? Wide(0) : x;\n  return scale * (kept * kept);", "return scale * x - x * x;"
    )
    edit(tests, "scale * torch.relu(wide).square()", "scale * wide - wide * wide")
    cpu_build(CFLAGS="-mfma")
    assert "5 passed" in python(*OWN_TESTS, "-k", "(values or strides) and cpu", PYTHONPATH="src").stdout


@pytest.mark.thorough
def test_it_builds_and_passes(python, project, tmp_path):
    """As it is shipped: renamed, an sdist, from that a wheel, and with that the tests that are in the sdist."""
    python("rename.py", "my_op")
    python("-c", f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})")
    [sdist] = tmp_path.glob("my_op-0.1.0.tar.gz")
    python("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, sdist)
    (wheel,) = tmp_path.glob("my_op-0.1.0-py3-none-linux_*.whl")
    site = tmp_path / "site"
    python("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel)
    assert {"_C.so", "py.typed"} < {path.name for path in (site / "my_op").iterdir()}
    has_nvcc = shutil.which("nvcc") is not None
    has_kernels = [
        f"my_op{which}_kernel".encode() in (site / "my_op" / "_C.so").read_bytes() for which in ("", "_backward")
    ]
    assert has_kernels == [has_nvcc and torch.version.cuda is not None] * 2
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path)
    copy = tmp_path / "my_op-0.1.0"
    # Of two kernels one is compiled once more, by the copy's own test.
    tests = *OWN_TESTS, "-rs", "-k", "not (kernel_compiles and backward)"
    said = python(*tests, cwd=copy, PYTHONPATH=str(site), OTHER_PYTHON=sys.executable).stdout
    # Where there is nvcc, the kernels are compiled for named GPUs, also with a torch without CUDA.
    assert ("needs nvcc" in said) != has_nvcc, said
    assert "the folder referee is not in this project" in said
    assert "my_op" in python(copy / "benchmark.py", PYTHONPATH=str(site)).stdout


@pytest.mark.thorough
@pytest.mark.anywhere
def test_referee(python, project, built):
    """Its tests take the referee if the folder is there. And no derivative is refused: not its gradient's either."""
    shutil.copytree(built, project, dirs_exist_ok=True)
    shutil.copytree(ROOT / "lab" / "referee", project / "referee", ignore=leftovers)
    assert " passed" in python(*OWN_TESTS, "tests/test_referee.py", PYTHONPATH="src").stdout
    needed = {"vmap", "gradients", "tangents", "transforms", "second_derivatives", "compiled_derivatives"}
    command = ["-m", "referee", "tests/spec.py", "--json", "found.json", *(f"--check={name}" for name in needed)]
    python(*command, PYTHONPATH="src")
    assert right_in(project / "found.json") == needed
    spec = (ROOT / "tests" / "specs" / "starter.py").read_text()
    (project / "tests" / "spec.py").write_text(spec.replace("from lab.referee", "from referee"))
    python("-m", "referee", "tests/spec.py", "--json", "found.json", "--quick", PYTHONPATH="src")
    assert needed <= right_in(project / "found.json")


def right_in(file):
    (operator,) = json.loads(file.read_text())["operators"]
    return {finding["check"] for finding in operator["findings"] if finding["verdict"] == "right"}


@pytest.mark.thorough
@pytest.mark.anywhere
def test_types(python, project):
    pytest.importorskip("mypy")
    assert "no issues found" in python("-m", "mypy", "--strict", "--no-incremental").stdout


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.skipif(importlib.util.find_spec("kernels") is None, reason="needs the package kernels")
def test_hub(run, built):
    """Hugging Face's `kernels` loads the folder that to_hub.py writes, where the package itself is not installed."""
    run("to_hub.py", root=built)
    use = "import torch, kernels, pathlib; a = torch.tensor([1.0, -3.0], requires_grad=True)"
    use += "; y = kernels.get_local_kernel(pathlib.Path('hub')).squared_relu(a, 0.5); y.sum().backward()"
    done = run("-c", f"{use}; print(y.tolist(), a.grad.tolist())", root=built, HF_HUB_OFFLINE="1")
    assert "[0.5, 0.0] [1.0, 0.0]" in done.stdout
    [metadata] = built.glob("hub/build/*/metadata.json")
    assert {"version": 0, "license": "MIT"}.items() <= json.loads(metadata.read_text()).items()
    checker = pytest.importorskip("kernel_abi_check", reason="needs the package kernel-abi-check")
    [library] = built.glob("hub/build/*/_C.so")
    assert checker.ObjectFile(library).check_python_abi("3.10") == []
