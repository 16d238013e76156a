"""lab/emulator: programs that end by exit() or abort(), groups of threads, copies of arguments, large arrays."""

import math
from pathlib import Path

import pytest
import torch

from lab import emulator
from lab.emulator import __main__ as command

pytestmark = pytest.mark.anywhere

HERE = Path(__file__).parent / "emulator"


@pytest.fixture(scope="module")
def groups(emulator_cache):
    return emulator.load(HERE / "groups.cu")


def run(function, *arguments, **options):
    report = emulator.run(function, *arguments, **options)
    assert not report.is_wrong(), report
    return report


def ints(n):
    return torch.zeros(n, dtype=torch.int32)


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("0", 1, ""),
        ("1", 1, "main returned 3"),
        ("2", 1, "the launcher returned an error: it has aborted"),
        ("3", 1, "the launcher returned an error: it has aborted"),
        ("4", 1, "an exception of another type than std::exception"),
        ("9", 1, "main returned 9"),
    ],
)
def test_a_program_that_ends_early(emulator_cache, capsys, how, status, words):
    """Its report is not lost: the fault before the end is in it."""
    assert command.main([str(HERE / "ends.cu"), "main", how]) == status
    told = capsys.readouterr().out
    assert "FAULT: out of bounds in ends.cu:7" in told
    assert words in told


def test_a_launcher_that_ends_early(emulator_cache):
    """This process goes on, and the next run is as any other."""
    kernels = emulator.load(HERE / "ends.cu")
    for how, error in ((1, "it has called exit(3)"), (2, "it has aborted"), (8, None)):
        y = ints(4)
        report = emulator.run(kernels.launch, y, how)
        assert (report.error, report.faults, y.tolist()) == (error, [], [1] * 4)
        assert report.result == (8 if how == 8 else None)


def test_tiles_of_tiles(groups):
    y = ints(64)
    run(groups.tiles_of_tiles[1, 64], emulator.out(y))
    assert y.tolist() == [i // 4 * 4 * 100 + i % 16 // 4 * 10 + 4 for i in range(64)]


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_lanes_with_one_label(groups, order):
    y = ints(64)
    run(groups.labels[1, 32], emulator.out(y), order=order, seed=3)
    sizes = [len(range(label, 32, 3)) for label in range(3)]
    assert y[:32].tolist() == [i // 3 * 10000 + sizes[i % 3] * 100 + (24 if i >= 8 else 8) for i in range(32)]
    assert y[32:].tolist() == [sum(range(i % 3, 32, 3)) for i in range(32)]
    run(groups.odd_lanes[1, 32], emulator.out(y[:32]), order=order, seed=3)
    before = [lane if lane < 4 else lane - 4 for lane in range(32)]
    after = [lane if lane == 31 else lane + 2 for lane in range(32)]
    right = [before[lane] * 10000 + after[lane] * 100 + 7 + 1 if lane % 2 else 0 for lane in range(32)]
    assert y[:32].tolist() == right


def test_blocks_of_a_grid(groups):
    y = ints(6)
    run(groups.whole_grid[(3, 2), 32], emulator.out(y))
    assert y.tolist() == [600 + 20 + i % 3 for i in range(6)]


def test_more_functions(groups):
    y = torch.zeros(19, dtype=torch.float64)
    run(groups.of_one_thread[1, 32], emulator.out(y))
    half = math.sqrt(0.5)
    right = [half, half, 1, 0.5, 3, 0.5, 3e9, -5, 4, 4294967294, 7, 9, 0.5, 0, 0, 1, -2, 0, 0.25]
    assert torch.allclose(y, torch.tensor(right, dtype=torch.float64), atol=1e-6), y


def test_a_class_with_a_copy_constructor(groups):
    y = ints(8)
    report = run(groups.launch_fill, emulator.out(y), 8)
    assert y.tolist() == [7] * 8
    assert [launch.kernel for launch in report.launches] == ["fill"]


def test_a_byte_of_a_large_array(groups):
    """Each byte is watched then, but only those that are touched take memory."""
    y = torch.zeros(300 << 20, dtype=torch.uint8)
    run(groups.launch_set_one, y, len(y) - 5)
    assert y.nonzero().tolist() == [[len(y) - 5]]


def test_a_read_before_an_atomic_operation(groups):
    """More threads may pass the check than there is room for; a check before atomicMax only saves work."""
    report = emulator.run(groups.push[2, 64], ints(1), 10)
    assert {fault.kind for fault in report.faults} == {"race"}
    most = ints(1)
    run(groups.largest[1, 64], most)
    assert most.tolist() == [63]


def test_complex_numbers(groups):
    z = torch.zeros(4)
    run(groups.rotate[1, 1], emulator.out(z), 3)  # (3 + 4i) / i, then (x - x i) / i
    x = (3 + 4j) * 1j**3
    right = (x * -1j + x) / 1j
    assert z.tolist() == pytest.approx([right.real, right.imag, 5, x.real + x.imag])


def test_rows_and_symbols(groups):
    y = ints(33)
    run(groups.rows_and_symbols, y, 32)
    assert y.tolist() == [0] + [0x01010101, 0x01010101, *[0] * 6] * 4
    report = emulator.run(groups.rows_and_symbols, y, 4)
    assert report.error == "invalid argument"
    assert "refuses cudaMemset2D (invalid argument): rows of 8 bytes, and a pitch of 4 bytes" in str(report)
