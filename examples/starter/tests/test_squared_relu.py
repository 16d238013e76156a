"""On the CPU and, where there is one, on the GPU. Without a GPU the kernels are at least compiled."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import CUDA_HOME, include_paths

from squared_relu import squared_relu

forward_op = torch.ops.squared_relu.squared_relu.default
backward_op = torch.ops.squared_relu.squared_relu_backward.default
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["cpu"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    return request.param


def by_torch(x, scale):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (scale * torch.relu(wide).square()).to(x.dtype)


def assert_same(result, expected):
    """The one tolerance: assert_close's own. nvcc (gcc, too, where the CPU can) fuses product and sum in x * c - y * s,
    which rounds once instead of twice, so the last bits differ from torch's. A sum of many numbers needs more."""
    torch.testing.assert_close(result, expected, equal_nan=True)


def doubles(device):
    return torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype, device):
    for n in (0, 1, 255, 256, 257, 100_003):
        x = torch.randn(n, dtype=dtype, device=device)
        x[:1] = float("nan")
        assert_same(squared_relu(x, 0.3), by_torch(x, 0.3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient(dtype, device):
    """Of every dtype: gradcheck below is for float64. With numbers so small that a result may be rounded to 0."""
    x, grad = torch.randn(2, 1000, dtype=dtype, device=device)
    x[:10] = 1e-4
    x.requires_grad_()
    ours, theirs = (torch.autograd.grad(f(x, 0.3), x, grad) for f in (squared_relu, by_torch))
    assert_same(ours, theirs)


def test_strides(device):
    """The gradient, too: of a sum it is expanded, of a transposed result it is transposed."""
    x = torch.randn(30, 20, device=device)
    for view in (lambda x: x.t(), lambda x: x[:, 1::3], lambda x: x[0].expand(5, 20), lambda x: x[3, 4]):
        assert_same(squared_relu(view(x), -2.0), by_torch(view(x), -2.0))
        assert_same(backward_op(view(x), view(x), 0.5), backward_op(view(x).clone(), view(x).clone(), 0.5))


def test_contract(device):
    """opcheck: schema, fake kernel, registration of the gradient, torch.compile."""
    x = doubles(device)
    for each in (x, x.detach().t()):
        torch.library.opcheck(forward_op, (each, 0.5))
        torch.library.opcheck(backward_op, (torch.ones_like(each), each.detach(), 0.5))


def test_derivatives(device):
    x = doubles(device)
    assert torch.autograd.gradcheck(squared_relu, (x, 0.7), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(squared_relu, (x, 0.7))
    # with pytest.raises(RuntimeError, match="no second derivative"):  # instead, if they are refused
    #     torch.autograd.gradgradcheck(squared_relu, (x, 0.7))
    for transform in (torch.func.jacfwd, torch.func.jacrev, torch.func.hessian, torch.func.vmap):
        assert_same(transform(lambda x: squared_relu(x, 0.7))(x), transform(lambda x: by_torch(x, 0.7))(x))
    found = torch.func.vmap(backward_op, (0, None, None))(x, x[0], 0.7)
    assert_same(found, backward_op(x, x[0].expand_as(x), 0.7))


def test_compile(device):
    x = doubles(device)
    y, expected = torch.compile(squared_relu, fullgraph=True)(x, 2.0), by_torch(x, 2.0)
    assert_same(y, expected)
    assert_same(*(torch.autograd.grad(result, x, expected.detach()) for result in (y, expected)))


def test_refusals(device):
    x = torch.ones(3, device=device)
    with pytest.raises(TypeError, match="expected a number"):
        squared_relu(x, x[0])
    with pytest.raises(TypeError, match="x is None"):
        squared_relu(None, 0.7)
    freed = torch.ones(3, device=device)
    part = freed[1:]
    freed.untyped_storage().resize_(0)
    for words, wrong in {"no kernel for Int": x.int(), "x has no memory": freed, "no memory any": part}.items():
        with pytest.raises(RuntimeError, match=words):
            squared_relu(wrong, 0.7)
    wrong = {"grad is Double": x.double(), r"grad has shape \[2\], expected \[3\]": x[1:], "grad is None": None}
    for words, grad in (wrong | {"grad is on meta": x.to("meta"), "grad has no memory": freed}).items():
        with pytest.raises(RuntimeError, match=words):
            backward_op(grad, x, 0.5)


@pytest.mark.skipif(not (CUDA_HOME or shutil.which("nvcc")), reason="needs nvcc")
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_kernel_compiles(name, tmp_path):
    source = Path(__file__).parents[1] / "csrc" / f"squared_relu_{name}.cu"
    nvcc = f"{CUDA_HOME}/bin/nvcc" if CUDA_HOME else "nvcc"  # a torch without CUDA does not look for it
    command = [nvcc, "-c", source, "-o", tmp_path / "kernel.o", "-std=c++17", "-Werror=all-warnings"]
    command += [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (75, 90)]  # needs no GPU
    subprocess.run([*command, *(f"-isystem={path}" for path in include_paths())], check=True)
