"""examples/starter, as a reader uses it: copied out of the project and renamed, it builds and passes its tests."""

import functools
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from contract import FLOATS, Differentiable, randn

from lab.build import leftovers

STARTER = Path(__file__).resolve().parent.parent / "examples" / "starter"
OWN_TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


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
    return functools.partial(python, "setup.py", "-q", "build_ext", "--inplace", PATH=os.defpath, CUDA_HOME="none")


@pytest.fixture(scope="module")
def built(run, once):
    """A copy in which it is built, for all tests that do not edit it; where no GPU is, only the CPU's part."""

    def make(folder):
        shutil.copytree(STARTER, folder, ignore=leftovers)
        only_cpu = {} if torch.cuda.is_available() else {"PATH": os.defpath, "CUDA_HOME": "none"}
        run("setup.py", "-q", "build_ext", "--inplace", root=folder, **only_cpu)

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
def test_rename(project, monkeypatch):
    """A name that would not work is refused, and then nothing is changed. A good one is everywhere afterwards."""

    def rename(name, folder=project):
        monkeypatch.setattr(sys, "argv", ["rename.py", name])
        runpy.run_path(folder / "rename.py")  # in this process, which has imported torch

    before = contents(project)
    names = ("", "double", "torch", "json", "while", "tests", "launch", "My_op", "my-op", "a__b", "_x", "2x")
    wrong = dict.fromkeys(names, r"rename\.py: ")
    wrong |= dict.fromkeys(("aten", "quantized", "prims", "prim"), "a namespace of torch's own")  # defined only once
    for name, words in (wrong | dict.fromkeys(("xor", "union"), r"no name for a C\+\+ function")).items():
        with pytest.raises(SystemExit, match=words):
            rename(name)
    assert contents(project) == before
    with pytest.raises(SystemExit, match="copy the folder first"):
        rename("my_op", STARTER)
    for name in ("first_name", "softmax2"):
        rename(name)
    after = contents(project)
    readme = after.pop(Path("README.md"))
    assert "softmax2" in readme
    assert not re.search(r"scaled_relu|starter|rename\.py|\n\n\n", readme)  # nothing is left to copy and rename
    renamed = {Path(str(path).replace("scaled_relu", name)): text for path, text in before.items()}
    del renamed[Path("README.md")]
    assert after == {path: text.replace("scaled_relu", name) for path, text in renamed.items()}


def test_names_are_free(project):
    """The code names what it takes from torch, so a type of the reader's own is not ambiguous."""
    source = project / "csrc" / "scaled_relu.cpp"
    names = ("Layout", "DeviceType", "MemoryFormat")
    own = "".join(f"struct {x} {{ int rows; }};\nint rows({x} own) {{ return own.rows; }}\n" for x in names)
    edit(source, "using torch::stable::Tensor;\n", f"using torch::stable::Tensor;\n{own}")
    include = Path(torch.__file__).parent / "include"
    subprocess.run(["c++", "-std=c++17", "-fsyntax-only", "-I", include, source], check=True)


@pytest.mark.thorough
class TestScaledRelu(Differentiable):
    operator, leaves, rows, has_second = "scaled_relu.scaled_relu", (0, 1), {0: 0, 1: 0}, True

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loaded(cls, built):
        sys.path.insert(0, str(built / "src"))
        cls.lib = importlib.import_module("scaled_relu")

    def call(self, a, b):
        return self.lib.scaled_relu(a, b, 0.5)

    def op_calls(self, inputs):
        yield self.op, (*inputs, 0.5)

    def by_torch(self, a, b):
        return torch.relu(0.5 * (a + b))

    def inputs(self, device):
        return [randn(4, 3, device=device), randn(3, 4, device=device).t()]

    def wrong(self, inputs):
        _, b = inputs
        return {"b is Double": {1: b.double()}, r"shape \[3, 3\]": {1: b[1:]}, "b is None": {1: None}}

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("factor", [1, 60000])
    def test_derivatives_in_the_kernels_precision(self, dtype, factor, device):
        """torch.func's have the same bits, compiled or not: of the result and of the gradient."""
        a, b = (factor * torch.rand(2, 20000, dtype=torch.float64)).to(device, dtype)
        x, grad = a.clone().requires_grad_(), torch.rand_like(a)

        def of_a(x):
            return self.lib.scaled_relu(x, b, 0.1)

        def tangent(a):
            return torch.func.jvp(of_a, (a,), (a,))[0]

        y, gradient = torch.func.vjp(of_a, a)
        for found in (y, tangent(a), torch.compile(tangent, fullgraph=True)(a)):
            assert torch.equal(of_a(a), found)
        assert torch.equal(torch.autograd.grad(of_a(x), x, grad)[0], gradient(grad)[0])


@pytest.mark.thorough
def test_gpus_that_cannot_be_compiled_for(python):
    """A wheel without the GPU code that was asked for would have the same name."""
    command = ("setup.py", "-q", "build_ext", "--inplace")
    done = python(*command, status=1, PATH=os.defpath, CUDA_HOME="none", TORCH_CUDA_ARCH_LIST="9.0")
    assert "TORCH_CUDA_ARCH_LIST is set, but" in done.stderr


@pytest.mark.thorough
def test_failed_build_leaves_no_library(python, project, built):
    shutil.copytree(built, project, dirs_exist_ok=True)
    python("-c", "import scaled_relu", PYTHONPATH="src")
    edit(project / "csrc" / "scaled_relu.cpp", "double scale) {\n  check", "double scale) {\n  mistake(); check")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    assert subprocess.run(command, cwd=project, capture_output=True, check=False).returncode != 0
    program = "try: import scaled_relu\nexcept ImportError as error: print(error)"
    assert "_C.so is missing: run `python3 setup.py" in python("-c", program, PYTHONPATH="src").stdout


@pytest.mark.thorough
def test_editable(python, project, tmp_path):
    """In a virtual environment that sees the packages of this one. `python3 -m pytest` looks there first."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    words = ("-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "-e", ".")
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "CUDA_HOME": "none"}
    for arguments in (words, (*OWN_TESTS, "-k", "values or strides")):
        command = [tmp_path / "venv" / "bin" / "python", *arguments]
        done = subprocess.run(command, cwd=project, env=os.environ | path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not (site / "scaled_relu").exists()


@pytest.mark.thorough
@pytest.mark.skipif(" fma " not in Path("/proc/cpuinfo").read_text(), reason="needs a CPU that fuses product and sum")
def test_tolerance_allows_fused_product_and_sum(python, project, cpu_build):
    """A formula with a product and a sum, compiled as nvcc does by default: the reader's tests pass."""
    source, tests = project / "csrc" / "scaled_relu.cpp", project / "tests" / "test_scaled_relu.py"
    edit(source, "Wide(scale) * (Wide(a[i]) + Wide(b[i]))", "scale * Wide(a[i]) - Wide(a[i]) * Wide(b[i])")
    edit(source, "double scale, int64_t n) {\n  auto*", "Wide scale, int64_t n) {\n  auto*")
    edit(tests, "scale * (a.to(wide) + b.to(wide))", "scale * a.to(wide) - a.to(wide) * b.to(wide)")
    cpu_build(CFLAGS="-mfma")
    assert "5 passed" in python(*OWN_TESTS, "-k", "(values or strides) and cpu", PYTHONPATH="src").stdout


@pytest.mark.thorough
def test_it_builds_and_passes(python, project, tmp_path):
    python("rename.py", "my_op")
    python("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, ".")
    (wheel,) = tmp_path.glob("my_op-0.1.0-py3-none-linux_*.whl")
    site = tmp_path / "site"
    python("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel)
    has_nvcc = shutil.which("nvcc") is not None
    has_kernel = b"my_op_kernel" in (site / "my_op" / "_C.so").read_bytes()
    assert has_kernel == (has_nvcc and torch.version.cuda is not None)
    said = python(*OWN_TESTS, "-rs", PYTHONPATH=str(site)).stdout
    # Where there is nvcc, the kernel is compiled for named GPUs, also with a torch without CUDA.
    assert ("SKIPPED" in said) != has_nvcc, said
    assert "my_op" in python("benchmark.py", PYTHONPATH=str(site)).stdout


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.skipif(importlib.util.find_spec("kernels") is None, reason="needs the package kernels")
def test_hub(run, built):
    """Hugging Face's `kernels` loads the folder that to_hub.py writes, where the package itself is not installed."""
    run("to_hub.py", root=built)
    use = "import torch, kernels, pathlib; a = torch.tensor([1.0, -3.0], requires_grad=True)"
    use += "; y = kernels.get_local_kernel(pathlib.Path('hub')).scaled_relu(a, a, 0.5); y.sum().backward()"
    done = run("-c", f"{use}; print(y.tolist(), a.grad.tolist())", root=built, HF_HUB_OFFLINE="1")
    assert "[1.0, 0.0] [1.0, 0.0]" in done.stdout
    checker = pytest.importorskip("kernel_abi_check", reason="needs the package kernel-abi-check")
    [library] = built.glob("hub/build/*/_C.so")
    assert checker.ObjectFile(library).check_python_abi("3.10") == []
