"""The kernels one by one, and every rounding of float16."""

import itertools
import math
import types

import pytest
import torch
from test_values import INTEGERS, same_bits

from lab.bench import kernels

NAMES = [(device, name) for device in ["emulator", *["cuda"] * torch.cuda.is_available()] for name in kernels.KERNELS]


@pytest.fixture(scope="module")
def emulated():
    return kernels.in_emulator()


@pytest.fixture(scope="module")
def on_gpu(cuda):
    return kernels.kernels(torch.device(cuda))


@pytest.fixture(params=NAMES, ids="-".join)
def kernel(request):
    """A kernel's launcher as a function of (c, a, b, n): on a GPU, and on every machine in the emulator."""
    where, name = request.param
    device = "cpu" if where == "emulator" else "cuda"
    if where == "cuda":
        launch = request.getfixturevalue("on_gpu")[f"{name} kernel"]
    else:
        launchers = request.getfixturevalue("emulated")

        def launch(c, a, b, n):
            kernels.add(launchers, name, c, a, b, n)
            assert not launchers.report.faults

    return types.SimpleNamespace(launch=launch, device=device, unaligned=name in ("plain", "unaligned"))


# Aligned kernels have a block for the elements after the last whole vector, and larger blocks from 16 MB on.
@pytest.mark.parametrize(
    "sizes", [(0, 1, 7, 8, 31, 33, 255, 256, 257), (1000, 1024, 4097), (4099, 2**16, 2**20 + 5, 2**23, 2**23 + 7)]
)
def test_each_kernel(kernel, dtype, sizes):
    if kernel.device == "cpu" and max(sizes) > 5000:
        pytest.skip("takes long in the emulator")
    offsets = range(16 // dtype.itemsize) if max(sizes) < 300 else (0, 1, 3)
    for n, offset in itertools.product(sizes, offsets if kernel.unaligned else (0,)):
        a, b = (x[offset:] for x in torch.randn(2, n + offset, device=kernel.device, dtype=dtype))
        a, b = (a, b) if kernel.unaligned else (a.clone(), b.clone())
        whole = torch.full((n + 48,), math.nan, device=kernel.device, dtype=dtype)
        kernel.launch(whole[offset:], a, b, n)
        assert same_bits(whole[offset : offset + n], a + b)
        assert whole[:offset].isnan().all()
        assert whole[offset + n :].isnan().all()


def test_every_pair_of_float16(add, cuda):
    """2^32 sums: normal, subnormal, infinite, NaN, and every tie."""
    values = torch.arange(-(2**15), 2**15, device=cuda).to(torch.int16).view(torch.float16)
    for rows in values.split(2**10):
        a = rows.repeat_interleave(len(values))
        b = values.repeat(len(rows))
        assert same_bits(add(a, b), a + b)


def test_random_bits(add, device, dtype):
    """Four million pairs of random bit patterns: every exponent, infinities, NaNs, subnormals."""
    bits = torch.iinfo(INTEGERS[dtype])
    a, b = torch.randint(bits.min, bits.max, (2, 2**22), dtype=INTEGERS[dtype], device=device).view(dtype)
    b[::2] = a[::2] * 1.5  # of about the same size, so that the sum is rounded
    assert same_bits(add(a, b), a + b)
