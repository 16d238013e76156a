"""What the referee found in the operators of others, each finding again in a few lines of torch, without the referee.

    python3 docs/results/referee/by_hand.py                  # all packages that are installed
    python3 docs/results/referee/by_hand.py torchvision      # one of them

Each finding runs in a process of its own, as some end it. It prints what the operator gives, and what it should.
"""

import importlib.util
import subprocess
import sys
import threading
import time

import torch
from torch.autograd import forward_ad

FINDINGS = {}


def finding(package):
    def add(function):
        FINDINGS[f"{package}.{function.__name__}"] = function
        return function

    return add


def show(found, right):
    print(f"gives {found}, expected {right}")


def tangent(function, x):
    """The forward derivative of function at x in the direction of ones: None stands for 0."""
    with forward_ad.dual_level():
        y = function(forward_ad.make_dual(x, torch.ones_like(x)))
        return forward_ad.unpack_dual(y).tangent


# --- extension-cpp ---------------------------------------------------------------------------------------------------


@finding("extension_cpp")
def mymuladd_second_derivatives():
    a, b = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    y = torch.ops.extension_cpp.mymuladd(a, b, 1.0)
    (grad,) = torch.autograd.grad(y * y, a, create_graph=True)  # 2 y b = 42
    (second,) = torch.autograd.grad(grad, a)
    show(second.item(), "2 b^2 = 18")


@finding("extension_cpp")
def mymuladd_tangents():
    show(
        tangent(lambda a: torch.ops.extension_cpp.mymuladd(a, torch.full((1,), 3.0), 1.0), torch.ones(1)),
        "3 or an error",
    )


@finding("extension_cpp")
def mymuladd_fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = torch.ones(3, 2).t(), torch.ones(3, 2).t()
    real = torch.ops.extension_cpp.mymuladd(a, b, 1.0)
    with FakeTensorMode() as mode:
        fake = torch.ops.extension_cpp.mymuladd(mode.from_tensor(a), mode.from_tensor(b), 1.0)
    show(f"strides {fake.stride()} by the fake kernel", real.stride())


@finding("extension_cpp")
def myadd_out_version():
    x, a, b, out = torch.ones(1, requires_grad=True), torch.ones(1), torch.full((1,), 9.0), torch.ones(1)
    y = x * out  # saves out, which is 1
    torch.ops.extension_cpp.myadd_out(a, b, out)
    y.backward()
    show(f"a gradient of {x.grad.item()}", "1 or an error")


@finding("extension_cpp")
def myadd_out_overlaps():
    memory = torch.arange(5.0)
    a, out = memory[:4], memory[1:]
    right = a + 10
    torch.ops.extension_cpp.myadd_out(a, torch.full((4,), 10.0), out)
    show(out.tolist(), f"{right.tolist()} or an error")


@finding("extension_cpp")
def myadd_out_lost_gradients():
    a, out = torch.ones(1, requires_grad=True), torch.zeros(1)
    torch.ops.extension_cpp.myadd_out(a, torch.ones(1), out)
    show(f"out.requires_grad = {out.requires_grad}", "True or an error")


@finding("extension_cpp")
def myadd_out_written_leaves():
    out = torch.zeros(1, requires_grad=True)
    torch.ops.extension_cpp.myadd_out(torch.ones(1), torch.ones(1), out)
    show(out, "an error, as from out.add_(2)")


# --- torchvision -----------------------------------------------------------------------------------------------------


def align(x, rois):
    return torch.ops.torchvision.roi_align(x, rois, 1.0, 2, 2, 2, False)


@finding("torchvision")
def roi_align_garbage_values():
    x = torch.ones(1, 1, 8, 8)
    show(
        align(x, torch.tensor([[1.0, 1, 1, 5, 5]])).flatten().tolist(),
        "an error: x has one image, the box names a second",
    )


@finding("torchvision")
def roi_align_special_values():
    align(torch.ones(1, 1, 8, 8), torch.tensor([[0, 1, 1, float("nan"), 5]]))
    print("no crash")


@finding("torchvision")
def roi_align_lost_gradients():
    rois = torch.tensor([[0.0, 1.2, 1.1, 5.3, 5.4]], requires_grad=True)
    y = align(torch.randn(1, 1, 8, 8, requires_grad=True), rois)
    show(torch.autograd.grad(y.sum(), rois, allow_unused=True)[0], "a gradient or an error")


@finding("torchvision")
def roi_align_transforms():
    rois = torch.tensor([[0.0, 1, 1, 5, 5]])
    jacobian = torch.func.jacfwd(lambda x: align(x, rois))(torch.randn(1, 1, 8, 8))
    show(f"a Jacobian whose absolute values add up to {jacobian.abs().sum().item()}", "4.0 (each of 4 bins is a mean)")


def deform(x, weight, offset):
    ones, zeros = torch.ones(1, 4, 5, 5), torch.zeros(4)
    return torch.ops.torchvision.deform_conv2d(x, weight, offset, ones, zeros, 1, 1, 0, 0, 1, 1, 1, 1, True)


@finding("torchvision")
def deform_conv2d_special_values():
    offset = torch.full((1, 8, 5, 5), float("nan"))
    deform(torch.ones(1, 3, 6, 6), torch.ones(4, 3, 2, 2), offset)
    print("no crash")


@finding("torchvision")
def deform_conv2d_tangents():
    offset = torch.zeros(1, 8, 5, 5)
    show(
        tangent(lambda x: deform(x, torch.ones(4, 3, 2, 2), offset), torch.ones(1, 3, 6, 6)),
        "12 in each element, or an error",
    )


@finding("torchvision")
def deform_conv2d_devices():
    x, weight = torch.ones(1, 3, 6, 6), torch.ones(4, 3, 2, 2, device="meta")
    y = deform(x, weight, torch.zeros(1, 8, 5, 5))
    show(f"a result on {y.device}", "an error: weight has no values")


# --- torchaudio ------------------------------------------------------------------------------------------------------


def rnnt_loss(logits, target):
    numbers = (torch.tensor(n, dtype=torch.int32) for n in ([[target]], [2], [1]))
    return importlib.import_module("torchaudio").functional.rnnt_loss(logits, *numbers, blank=0, reduction="none")


@finding("torchaudio")
def rnnt_loss_garbage_values():
    rnnt_loss(torch.zeros(1, 2, 2, 4), 2**31 - 1)
    print("no crash")


@finding("torchaudio")
def rnnt_loss_target_out_of_range():
    show(rnnt_loss(torch.zeros(1, 2, 2, 4), 9).item(), "an error: there are 4 classes, the target is 9")


@finding("torchaudio")
def rnnt_loss_second_derivatives():
    x = torch.zeros(1, 2, 2, 4, requires_grad=True)
    y = rnnt_loss(x, 1)
    (grad,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)  # 2 y dy
    (second,) = torch.autograd.grad(grad[0, 0, 0, 0], x)
    step = torch.zeros_like(x)
    step[0, 0, 0, 0] = 1e-2
    high, low = ((x + sign * step).detach().requires_grad_() for sign in (1, -1))
    slopes = [torch.autograd.grad((rnnt_loss(z, 1) ** 2).sum(), z)[0][0, 0, 0, 0] for z in (high, low)]
    show(
        f"{second[0, 0, 0, 0].item():.3f}",
        f"{((slopes[0] - slopes[1]) / 2e-2).item():.3f} (a difference quotient) or an error",
    )


# --- FBGEMM ----------------------------------------------------------------------------------------------------------


@finding("fbgemm_gpu")
def jagged_to_padded_dense_shapes():
    values = torch.ones(100, 4)[:6]  # the memory goes on after it
    y = torch.ops.fbgemm.jagged_to_padded_dense(values, [torch.tensor([0, 2, 2, 7])], [5])
    show(f"row 4 of the last group: {y[2, 4].tolist()}", "an error: values has rows 0 to 5, offsets ask for row 6")


@finding("fbgemm_gpu")
def jagged_to_padded_dense_second_derivatives():
    x = torch.full((2, 1), 3.0, requires_grad=True)
    y = torch.ops.fbgemm.jagged_to_padded_dense(x, [torch.tensor([0, 2])], [2])
    (grad,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    second = torch.autograd.grad(grad.sum(), x, allow_unused=True)[0] if grad.requires_grad else "no graph"
    show(second, "6 x = 18 in each element, or an error")


@finding("fbgemm_gpu")
def batched_dense_vec_jagged_2d_mul_garbage_values():
    y = torch.ops.fbgemm.batched_dense_vec_jagged_2d_mul(torch.ones(1, 9), torch.ones(100, 1)[:2], torch.tensor([0, 9]))
    show(y.tolist(), "an error: there are 2 rows, offsets ask for 9")


@finding("fbgemm_gpu")
def batched_dense_vec_jagged_2d_mul_second_derivatives():
    v, a = torch.full((1, 1), 3.0, requires_grad=True), torch.full((1, 1), 2.0, requires_grad=True)
    y = torch.ops.fbgemm.batched_dense_vec_jagged_2d_mul(v, a, torch.tensor([0, 1]))
    (grad,) = torch.autograd.grad(y.square().sum(), v, create_graph=True)
    second = torch.autograd.grad(grad.sum(), v, allow_unused=True)[0] if grad.requires_grad else "no graph"
    show(second, "2 a^2 = 8, or an error")


@finding("fbgemm_gpu")
def segment_sum_csr_strides():
    ends = torch.tensor([0, 9, 1, 9, 3, 9])[::2]  # 0, 1, 3
    y = torch.ops.fbgemm.segment_sum_csr(1, ends, torch.ones(100)[:3])
    show(y.tolist(), "[1.0, 2.0]")


@finding("fbgemm_gpu")
def segment_sum_csr_garbage_values():
    y = torch.ops.fbgemm.segment_sum_csr(1, torch.tensor([0, 50]), torch.ones(100)[:3])
    show(y.tolist(), "an error: there are 3 values, the segment has 50")


@finding("fbgemm_gpu")
def segment_sum_csr_lost_gradients():
    values = torch.ones(3, requires_grad=True)
    y = torch.ops.fbgemm.segment_sum_csr(1, torch.tensor([0, 1, 3]), values)
    show(torch.autograd.grad(y.sum(), values, allow_unused=True)[0], "ones or an error")


# --- bitsandbytes ----------------------------------------------------------------------------------------------------

TABLE = torch.linspace(-1, 1, 256)


def dequantize(scales, table=TABLE):
    numbers = torch.full((128,), 255, dtype=torch.uint8)
    return torch.ops.bitsandbytes.dequantize_blockwise(numbers, scales, table, 64, torch.float32)


@finding("bitsandbytes")
def dequantize_blockwise_mixed_dtypes():
    show(dequantize(torch.ones(2, dtype=torch.float64))[:2].tolist(), "[1.0, 1.0] or an error")


@finding("bitsandbytes")
def dequantize_blockwise_strides():
    scales = torch.tensor([1.0, 7.0, 2.0, 7.0])[::2]
    show(dequantize(scales)[[0, 64]].tolist(), "[1.0, 2.0]")


@finding("bitsandbytes")
def dequantize_blockwise_shapes():
    show(dequantize(torch.ones(100)[:1])[[0, 64]].tolist(), "an error: 2 blocks and 1 scale")


@finding("bitsandbytes")
def dequantize_blockwise_arguments():
    dequantize(None)
    print("no crash")


@finding("bitsandbytes")
def dequantize_blockwise_lost_gradients():
    scales = torch.ones(2, requires_grad=True)
    show(torch.autograd.grad(dequantize(scales).sum(), scales, allow_unused=True)[0], "64 for each scale, or an error")


@finding("bitsandbytes")
def quantize_blockwise_arguments():
    torch.ops.bitsandbytes.quantize_blockwise(torch.randn(64), None, 64)
    print("no crash")


@finding("bitsandbytes")
def quantize_blockwise_strides():
    table = torch.stack([TABLE, TABLE.flip(0)], 1)[:, 0]
    x = torch.linspace(-1, 1, 64)
    found, right = (torch.ops.bitsandbytes.quantize_blockwise(x, each, 64)[0] for each in (table, table.contiguous()))
    show(f"{(found != right).sum().item()} of 64 numbers that differ from those with a contiguous table", 0)


@finding("bitsandbytes")
def quantize_blockwise_threads():
    x = torch.linspace(-1, 1, 384)
    tables = [TABLE * (1 + k) / 2 for k in range(4)]
    wrong, end = [], time.monotonic() + 20  # it is rare

    def quantize(k):
        return torch.ops.bitsandbytes.quantize_blockwise(x.clone(), tables[k].clone(), 64)[0]

    right = [quantize(k) for k in range(4)]

    def work(k):
        while time.monotonic() < end:
            if not torch.equal(quantize(k), right[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    show(f"{len(wrong)} wrong results in 20 s, with four threads that use different tables", 0)


@finding("bitsandbytes")
def int8_linear_matmul_strides():
    a, b = torch.arange(32, dtype=torch.int8).expand(5, 32), torch.ones(8, 32, dtype=torch.int8)
    show(torch.ops.bitsandbytes.int8_linear_matmul(a, b)[:, 0].tolist(), [496] * 5)
    show(f"torch._int_mm: {torch._int_mm(a, b.t())[:, 0].tolist()}", [496] * 5)


def main() -> int:
    chosen = sys.argv[1:]
    if chosen and chosen[0] in FINDINGS:
        importlib.import_module(chosen[0].partition(".")[0])
        FINDINGS[chosen[0]]()
        return 0
    for name in FINDINGS:
        package = name.partition(".")[0]
        if importlib.util.find_spec(package) and (not chosen or package in chosen):
            done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)
            said = (done.stdout.strip() or (done.stderr.strip().splitlines() or [""])[-1]).replace("\n", "; ")
            print(f"{name}: {f'signal {-done.returncode}' if done.returncode < 0 else said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
