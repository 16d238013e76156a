"""python3 -m pytest: on the CPU and, where there is one, on the GPU. Without a GPU the kernel is at least compiled."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from scaled_relu import scaled_relu
from torch.utils.cpp_extension import CUDA_HOME, include_paths


@pytest.fixture(params=["cpu"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    return request.param


def by_torch(a, b, scale):
    wide = torch.promote_types(a.dtype, torch.float32)
    return torch.relu(scale * (a.to(wide) + b.to(wide))).to(a.dtype)


def assert_same(result, expected):
    """The one tolerance: assert_close's own. nvcc (gcc, too, where the CPU can) fuses product and sum in x * c - y * s,
    which rounds once instead of twice, so the last bits differ from torch's. A sum of many numbers needs more."""
    torch.testing.assert_close(result, expected, equal_nan=True)


def doubles(device):
    return [torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in "ab"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_values(dtype, device):
    for n in (0, 1, 255, 256, 257, 100_003):
        a, b = torch.randn(2, n, dtype=dtype, device=device)
        a[:1] = float("nan")
        assert_same(scaled_relu(a, b, 0.3), by_torch(a, b, 0.3))


def test_strides(device):
    a, b = torch.randn(2, 30, 20, device=device)
    for view in (lambda x: x.t(), lambda x: x[:, 1::3], lambda x: x[0].expand(5, 20), lambda x: x[3, 4]):
        assert_same(scaled_relu(view(a), view(b), -2.0), by_torch(view(a), view(b), -2.0))


def test_contract(device):
    a, b = doubles(device)
    for inputs in ((a, b, 0.5), (a.detach().t(), b.detach().t(), 0.5)):
        torch.library.opcheck(torch.ops.scaled_relu.scaled_relu.default, inputs)


def test_derivatives(device):
    a, b = doubles(device)
    assert torch.autograd.gradcheck(scaled_relu, (a, b, 0.7), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(scaled_relu, (a, b, 0.7))
    for transform in (torch.func.jacfwd, torch.func.jacrev, torch.func.hessian, torch.func.vmap):
        assert_same(transform(lambda x: scaled_relu(x, x, 0.7))(b), transform(lambda x: by_torch(x, x, 0.7))(b))
    x = torch.full((3,), 60000.0, dtype=torch.float16, device=device)  # x + x overflows in float16
    assert_same(torch.func.jvp(lambda x: scaled_relu(x, x, 0.1), (x,), (x,))[0], scaled_relu(x, x, 0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradient_of_each_dtype(dtype, device):  # gradcheck above is for float64
    a, b, grad = torch.randn(3, 1000, dtype=dtype, device=device)
    inputs = a.requires_grad_(), b.requires_grad_()
    ours, theirs = (torch.autograd.grad(f(*inputs, 0.3), inputs, grad) for f in (scaled_relu, by_torch))
    assert_same(ours, theirs)


def test_compile(device):
    inputs = doubles(device)
    y, expected = torch.compile(scaled_relu, fullgraph=True)(*inputs, 2.0), by_torch(*inputs, 2.0)
    grads = (torch.autograd.grad(result, inputs, result.detach()) for result in (y, expected))  # not all ones
    assert_same((y, *next(grads)), (expected, *next(grads)))


def test_refusals(device):
    a = torch.ones(3, device=device)
    wrong = {"b is Double": (a, a.double()), r"shape \[2\]": (a, a[1:]), "on meta": (a, a.to("meta"))}
    for words, inputs in (wrong | {"no kernel for Int": (a.int(), a.int()), "is None": (a, None)}).items():
        with pytest.raises(RuntimeError, match=words):
            scaled_relu(*inputs)
    for words, b in {r"shape \[1\]": a[:1], "b is Double": a.double()}.items():
        for derivative in (torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))):
            with pytest.raises(RuntimeError, match=words):
                derivative(lambda x, b=b: scaled_relu(x, b).sum())(a)
    with pytest.raises(TypeError, match="expected a number"):
        scaled_relu(a, a, a[0])


@pytest.mark.skipif(not (CUDA_HOME or shutil.which("nvcc")), reason="needs nvcc")
def test_kernel_compiles(tmp_path):
    source = Path(__file__).parents[1] / "csrc" / "scaled_relu_kernel.cu"
    nvcc = f"{CUDA_HOME}/bin/nvcc" if CUDA_HOME else "nvcc"  # a torch without CUDA does not look for it
    command = [nvcc, "-c", source, "-o", tmp_path / "kernel.o", "-std=c++17", "-Werror=all-warnings"]
    command += [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (75, 90)]  # needs no GPU
    subprocess.run([*command, *(f"-isystem={path}" for path in include_paths())], check=True)
