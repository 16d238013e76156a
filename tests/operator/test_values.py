"""Results equal torch's, bit for bit, whatever the dtype, the length, the alignment and the strides."""

import math
import os

import pytest
import torch

INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Stricter than torch.equal: 0.0 and -0.0 differ. (NaNs are compared as NaNs: torch promises no bits for them.)"""
    assert found.dtype == expected.dtype
    assert found.device == expected.device
    assert found.shape == expected.shape
    both_nan = found.isnan() & expected.isnan()
    integer = INTEGERS[found.dtype]
    equal = found.contiguous().view(integer) == expected.contiguous().view(integer)
    return bool((equal | both_nan).all())


@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 31, 1000, 1023, 1024, 4099, 2**20 + 3, 2**23 + 3])
def test_lengths(add, device, dtype, n):
    a, b = torch.randn(2, n, device=device, dtype=dtype)
    assert same_bits(add(a, b), a + b)


@pytest.mark.parametrize("offsets", [(1, 0), (0, 1), (1, 1), (1, 2), (3, 5)])
def test_views_that_are_not_aligned(add, device, dtype, offsets):
    n = 10_001
    whole_a, whole_b = torch.randn(2, n + 8, device=device, dtype=dtype)
    a, b = (whole[offset : offset + n] for whole, offset in zip((whole_a, whole_b), offsets, strict=True))
    assert same_bits(add(a, b), a + b)


LAYOUTS = {  # all of shape 4, 6, 5
    "row-major": lambda: torch.randn(4, 6, 5),
    "transposed": lambda: torch.randn(5, 6, 4).permute(2, 1, 0),
    "channels last": lambda: torch.randn(4, 5, 6).transpose(1, 2),
    "every other": lambda: torch.randn(4, 12, 5)[:, ::2],
    "part, transposed": lambda: torch.randn(5, 7, 9).permute(2, 1, 0)[2:6, 1:],
    "one batch for all": lambda: torch.randn(6, 5).expand(4, 6, 5),
    "one batch, transposed": lambda: torch.randn(5, 6).t().expand(4, 6, 5),
    "one row for all": lambda: torch.randn(4, 1, 5).expand(4, 6, 5),
    "one element for all": lambda: torch.randn(1).expand(4, 6, 5),
    "overlapping": lambda: torch.randn(99).as_strided((4, 6, 5), (2, 3, 2)),
}


OTHERS = {
    "4 dimensions, channels last": lambda: torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last),
    "column": lambda: torch.randn(40, 60)[:, 3],
    "no elements": lambda: torch.randn(0, 4),
    "no dimensions": lambda: torch.randn(()),
}


@pytest.mark.parametrize("layout", [*LAYOUTS, *OTHERS])
def test_strides(add, device, dtype, layout):
    a, b = ((LAYOUTS | OTHERS)[layout]().to(device, dtype) for _ in range(2))
    assert same_bits(add(a, b), a + b)
    assert same_bits(add(a, b.contiguous()), a + b)


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_layout_of_the_result(add2, device, first, second):
    """That of empty_like(a): of the result, and of what a fake kernel promises. Equal dense strides: torch.add's."""
    a, b = LAYOUTS[first]().to(device), LAYOUTS[second]().to(device)
    for x, y in ((a, b), (a[:, 1:2], b[:, 1:2]), (a[1:1], b[1:1]), (a[0], b[0])):
        found, expected = add2.add2(x, y), torch.empty_like(x)
        assert same_bits(found, x + y)
        assert found.stride() == expected.stride()
        promised = add2.add2(meta(x), meta(y)).stride()
        assert promised == torch.empty_like(meta(x)).stride()
        if x.numel():  # torch's own empty_like differs here between data and none; and in dimensions of size 1
            assert all(s == t for s, t, size in zip(promised, found.stride(), x.shape, strict=True) if size != 1)
    assert same_bits(torch.func.vmap(add2.add2)(a, b), a + b)
    if first == second and a.untyped_storage().nbytes() == a.nbytes:  # dense
        assert add2.add2(a, b).stride() == (a + b).stride()
    x, y = a.detach().requires_grad_(), b.detach().requires_grad_()
    (add2.add2(x, y) * a).sum().backward()
    assert torch.equal(x.grad, a)
    assert torch.equal(y.grad, a)


@pytest.mark.parametrize("layout", ["transposed", "channels last"])
def test_nothing_is_copied_that_lies_alike(add2, layout):
    """Pairs of one dense layout are added as they lie: only the result is allocated."""
    a, b = LAYOUTS[layout](), LAYOUTS[layout]()
    with torch.profiler.profile() as profile:
        c = add2.add2(a, b)
    assert [event.name for event in profile.events() if event.name == "aten::copy_"] == []
    assert torch.equal(c, a + b)


def meta(x):
    return torch.empty_strided(x.shape, x.stride(), device="meta")


def special_values(dtype, device):
    info = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, info.max, -info.max, info.tiny, -info.tiny]
    values += [info.tiny / 2, info.smallest_normal * info.eps, info.eps / 2, info.eps, 1 + info.eps]
    values += [0.5 - info.eps, 3.0, -2049.0]
    return torch.tensor(values, dtype=torch.float64).to(dtype).to(device)


def test_special_values(add, device, dtype):
    """With each other and, in 16 bits, with every value."""
    special = special_values(dtype, device)
    values = special
    if dtype.itemsize == 2:
        values = torch.arange(-(2**15), 2**15, device=device).to(torch.int16).view(dtype)
    for b in special:
        assert same_bits(add(values, b.repeat(len(values))), values + b)


@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_in_place(add2, device, dtype, which):
    a, b = torch.randn(2, 5003, device=device, dtype=dtype)
    if which == "both":
        b = a
    expected = a + b
    c = b if which == "b" else a
    add2.torch_launch_add2(c, a, b, 5003)
    assert same_bits(c, expected)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("n", [0, 1, 5, 999, 1000])
def test_only_n_elements_are_written(add2, device, dtype, n, offset):
    """Into a result that is aligned for vectors, or not."""
    a, b = torch.randn(2, 1000, device=device, dtype=dtype)
    whole = torch.full((1002,), math.nan, device=device, dtype=dtype)
    add2.torch_launch_add2(whole[offset : offset + 1000].view(10, 100), a, b, n)
    assert same_bits(whole[offset : offset + n], (a + b)[:n])
    assert whole[:offset].isnan().all()
    assert whole[offset + n :].isnan().all()


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.thorough)] + ["cuda"] * torch.cuda.is_available()
)
def test_longer_than_32_bits_count(add2, device):
    """n beyond 2^31. One tensor serves as both inputs and the result, so that 4.3 GB are enough."""
    n = 2**31 + 11
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
    if free < 3 * n * 2:
        pytest.skip("needs 13 GB of free memory")
    x = torch.empty(n, device=device, dtype=torch.bfloat16)
    x[: n - 4096].fill_(1.5)
    x[n - 4096 :].fill_(2.5)
    add2.torch_launch_add2(x, x, x, n)
    assert (x[-4096:] == 5).all()
    for start in (0, 2**30, 2**31 - 4096 * 2):
        assert (x[start : start + 4096] == 3).all()
