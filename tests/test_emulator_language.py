"""lab/emulator runs CUDA C++ as it is written: launches, shared memory, variables, warps, atomics, numbers."""

import ctypes
from pathlib import Path

import pytest
import torch

from lab import emulator

pytestmark = pytest.mark.anywhere

HERE = Path(__file__).parent / "emulator"


@pytest.fixture(scope="module")
def kernels(emulator_cache):
    return emulator.load(HERE / "language.cu")


def run(function, *arguments, **options):
    report = emulator.run(function, *arguments, **options)
    assert not report.faults, report
    assert report.error is None, report
    return report


def ints(n, value=0):
    return torch.full((n,), value, dtype=torch.int32)


def count(n):
    return torch.arange(n, dtype=torch.int32)


def test_launches(kernels):
    y = ints(32)
    report = run(kernels.launches, y)
    right = [4, 4, 4, 4, 32, 48, 48, 48, 20, 20, 18, 4, 4, 4, 4, 4, 4, 4, 4, 48, 24, 4, 4, 4, 4, 4, 4]
    assert y.tolist() == [*right, 0, 0, 0, 0, 0]
    names = [launch.kernel for launch in report.launches]
    assert names[2] == "inner::deep::one"
    assert names[5] == "of_type<Pair<int, Pair<int, int> > >"
    assert names[6] == "of_numbers<1, 2>"


def shared_right(x):
    i = count(64).long()
    total = x[63 - i] + 2 * x[63 - i] + x + 5 + 7 + (63 - i) + 3 * (63 - i) + x[63 - i] + (63 - i)
    other = torch.where(i % 64 // 2 % 2 == 0, i + 2, i - 2)
    return (total + torch.where(i % 2 == 0, other, 0)).int()


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_shared_arrays(kernels, order):
    x, y = count(64) * 3 + 1, ints(64)
    report = emulator.run(kernels.shared_memory, y, x, 0, order=order, seed=5)
    # Both blocks write the same values: no fault, but worth a note.
    assert not report.faults, report
    assert {note.kind for note in report.notes} == {"same value"}
    assert torch.equal(y, shared_right(x.long()))


def test_dynamic_shared(kernels):
    x, y = count(64), ints(64)
    run(kernels.shared_memory, emulator.out(y), x, 1)
    assert torch.equal(y, x.flip(0))
    run(kernels.shared_memory, y, x, 2)
    assert torch.equal(y, x.flip(0))


def test_large_dynamic_shared_needs_permission(kernels):
    x, y = count(64), ints(64)
    run(kernels.shared_memory, y, x, 3)
    report = emulator.run(kernels.shared_memory, y, x, 4)
    assert report.error == "invalid argument"
    assert [fault.kind for fault in report.faults] == ["launch"]
    assert "cudaFuncSetAttribute" in report.faults[0].message


def test_variables_and_memory(kernels):
    y = ints(64)
    run(kernels.variables_and_memory, emulator.out(y))
    scratch = torch.tensor([3, 30, 300, 3000] * 8, dtype=torch.int32)
    assert torch.equal(y, torch.cat([scratch + torch.tensor([2, 4] * 16, dtype=torch.int32), scratch]))


def test_three_dimensions(kernels):
    y = ints(12 * 60, -2)
    run(kernels.three_dimensions, emulator.out(y))
    assert torch.equal(y, (count(12)[:, None] * 1000 + count(60)).flatten())


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_votes_and_shuffles(kernels, order):
    x, y = count(64), ints(9 * 64)
    run(kernels.launch_votes, emulator.out(y), x, order=order)
    found, i = y.view(9, 64), count(64)
    lane, warp = i % 32, i // 32
    assert (found[0] == 1).all()
    assert (found[1] == 1).all()
    assert (found[2] == 8).all()
    assert (found[3] == 1).all()
    assert torch.equal(found[4], warp * 1024 + 496 - warp * 32)
    assert (found[5] == 140).all()
    assert torch.equal(found[6], torch.where(i % 3 == 0, 11, 0).int())
    up = torch.where(lane > 0, i - 1, i)
    down = torch.where(lane % 8 < 7, i + 1, i)
    assert torch.equal(found[7], (up + down + (i ^ 16)).int())
    assert torch.equal(found[8], i // 16 * 16 + 5)


def test_cooperative_groups(kernels):
    x, y = count(64), ints(192)
    run(kernels.launch_groups, y, x)
    assert y[:64].tolist() == [496] * 32 + [1520] * 32
    assert y[64:128].tolist() == [28 + 64 * (i // 8) + i % 32 // 8 for i in range(64)]
    assert y[128:].tolist() == [8 if i % 4 == 1 else 0 for i in range(64)]


def test_named_barrier(kernels):
    x, y = count(96), ints(96)
    run(kernels.launch_named_barrier, emulator.out(y), x)
    assert y.tolist() == [63 - i for i in range(64)] + [-1] * 32


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_atomics(kernels, order):
    y, f, d, u = ints(11), torch.zeros(2), torch.zeros(1).double(), torch.zeros(1, dtype=torch.int64)
    y[5], h = 255, torch.zeros(2).half()
    run(kernels.launch_atomics, y, f, d, u, h, order=order)
    assert y.tolist() == [496, -32, 31, -31, 255, 240, 0b011 ^ 0, 2, 4, 1, 1]
    assert f.tolist() == [16, 31]
    assert (d.item(), u.item(), h.tolist()) == (8, 32 << 33, [32, 64])


def test_numbers_of_16_bits(kernels):
    """All of them widen as in torch, and random floats, halfway cases and limits round as in torch."""
    n = 1 << 16
    codes = torch.arange(n, dtype=torch.int32)
    all_codes = torch.where(codes < 32768, codes, codes - n).short()
    half = all_codes.view(torch.float16)
    x = torch.randn(n) * torch.exp2(torch.randint(-26, 20, (n,)).float())
    x[:2048] = (half[15000:17048].float() + half[15001:17049].float()) / 2  # halfway
    x[2048:2052] = torch.tensor([65519.9, 65520, float("inf"), 2.0**-25])
    wide, narrow = torch.empty(2 * n), torch.empty(4 * n, dtype=torch.int16)
    run(kernels.launch_conversions, emulator.out(wide), emulator.out(narrow), all_codes, x, n, counts=False)
    torch.testing.assert_close(wide[:n], half.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(wide[n:], all_codes.view(torch.bfloat16).float(), rtol=0, atol=0, equal_nan=True)
    found = narrow.view(4, n)
    assert torch.equal(found[0].view(torch.float16), x.half())
    assert torch.equal(found[1].view(torch.bfloat16), x.bfloat16())
    is_number = ~half.isnan() & x.isfinite()
    for row, right in ((2, x.half() + half), (3, x.half() * half)):
        mine, right = found[row].view(torch.float16)[is_number], right[is_number]
        torch.testing.assert_close(mine, right, rtol=0, atol=0, equal_nan=True)


def test_functions(kernels):
    x = torch.linspace(0.1, 3, 32)
    y = torch.empty(32, 27)
    run(kernels.launch_functions, emulator.out(y), x)
    one, zero = torch.ones(32), torch.zeros(32)
    right = [x.exp(), x.exp2(), x.rsqrt(), x.exp(), x * x + 1, x.erf(), x.tanh(), x.log(), x.sqrt(), 1 / x]
    right += [x.clamp(max=1), 3 * one, x, zero, x.clamp(0, 1), x.round(), 38 * one, one, one, one, x * x, 256 * one]
    right += [1 / x, one, one, x, one]
    torch.testing.assert_close(y, torch.stack(right, 1))


def test_calls_and_printf(kernels, capfd):
    y = ints(32)
    emulator.run(kernels.launch_calls, y)
    fibonacci, primes, more = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34], [2, 3, 5, 7, 11, 13, 17, 19], [1, 2, 4]
    powers = [i * i if i % 2 else i**3 for i in range(32)]
    assert y.tolist() == [
        fibonacci[i % 10] + powers[i] + primes[i % 8] + more[i % 3] + 6 + 4 * i + 2 * i for i in range(32)
    ]
    assert capfd.readouterr().out == "block 0 of 2\nblock 1 of 2\n"


class Two(ctypes.Structure):
    _fields_ = (("place", ctypes.c_int), ("more", ctypes.c_int))


def test_parameters(kernels):
    y = torch.zeros(4, dtype=torch.float64)
    report = run(kernels.parameters, y, 1.5, 2.25, -7, True, 1 << 40, 3, ctypes.byref(Two(1, 5)))
    assert report.result == 42
    assert y.tolist() == [1.5, 2.25, -6, (1 << 40) + 8]


def test_wrong_arguments_are_refused(kernels):
    y = ints(1)
    with pytest.raises(TypeError, match="takes 8 arguments, found 2"):
        emulator.run(kernels.parameters, y, 1.5)
    with pytest.raises(TypeError, match=r"argument 2: expected float, found a tensor"):
        emulator.run(kernels.parameters, y, y, 2.25, -7, True, 1, 3, None)
    with pytest.raises(TypeError, match=r"argument 4: expected int8, found 0\.5"):
        emulator.run(kernels.parameters, y, 1.5, 2.25, 0.5, True, 1, 3, None)
    with pytest.raises(TypeError, match=r"numbers is a kernel: run\(numbers\[grid, block\], \.\.\.\)"):
        emulator.run(kernels.numbers, y)
    with pytest.raises(AttributeError, match="launch_votes"):
        _ = kernels.no_such_function


def test_declarations(kernels):
    y = torch.empty(128)
    run(kernels.launch_shapes, emulator.out(y))
    assert y.view(4, 32).unique(dim=1).flatten().tolist() == [31, 31, 9 + 2 + 6 + 2 + 3 + 9 + 5 + 2 + 1, 3]


def test_whole_program(kernels, capfd):
    report = run(kernels.main)
    assert report.result == 0
    assert capfd.readouterr().out == "host[999] = 3\n"
    assert len(report.launches) == 20


def test_copies(kernels):
    """Those that CUDA refuses change nothing: too many bytes, or a host's pointer where `kind` says GPU."""
    x = torch.full((4,), 7.0)
    report = emulator.run(kernels.copies, x, 4)
    assert report.result == (1 << 30 | 0b111111), bin(report.result)
    assert x.tolist() == [2, 3, 10, 11]


def test_errors_of_a_launcher(kernels):
    assert emulator.run(kernels.launch_too_many).error == "invalid configuration argument"
    assert emulator.run(kernels.throws, 7).error == "there is no such rung"
    with pytest.raises(TypeError, match=r"takes_a_class\(struct\) takes or returns a class"):
        emulator.run(kernels.takes_a_class, None)
    with pytest.raises(TypeError, match=f"throws, argument 1: {1 << 40} does not fit int32"):
        emulator.run(kernels.throws, 1 << 40)
