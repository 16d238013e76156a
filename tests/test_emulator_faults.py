"""lab/emulator finds each planted fault of emulator/faults.cu in the line that is marked, and nothing in its twin."""

import re
from pathlib import Path

import pytest
import torch

from lab import emulator

pytestmark = pytest.mark.anywhere

SOURCE = Path(__file__).parent / "emulator/faults.cu"
# name: (kind, grid, block, elements of y, elements of x, n)
FAULTS = {
    "past_end_write": ("out of bounds", 2, 32, 33, 33, 33),
    "past_end_read": ("out of bounds", 2, 32, 33, 33, 33),
    "before_begin": ("out of bounds", 1, 32, 32, 32, 32),
    "vector_over_end": ("out of bounds", 1, 32, 25, 98, 98),
    "memcpy_over_end": ("out of bounds", 1, 32, 32, 126, 126),
    "shared_pointer": ("out of bounds", 1, 32, 32, 32, 32),
    "shared_row": ("out of bounds", 1, 32, 32, 32, 32),
    "local_array": ("out of bounds", 1, 32, 32, 32, 5),
    "variable": ("out of bounds", 1, 32, 32, 32, 32),
    "null_pointer": ("null pointer", 1, 32, 32, 32, 32),
    "misaligned": ("misaligned", 1, 32, 32, 32, 32),
    "uninitialized_result": ("uninitialized", 1, 32, 32, 32, 32),
    "uninitialized_shared": ("uninitialized", 2, 32, 32, 32, 32),
    "race_of_warps": ("race", 1, 64, 64, 64, 64),
    "race_of_turns": ("race", 1, 64, 64, 64, 64),
    "race_in_warp": ("race", 1, 32, 32, 32, 32),
    "volatile_in_warp": ("race", 1, 32, 32, 32, 32),
    "shuffle_orders_nothing": ("race", 1, 32, 32, 32, 32),
    "plain_counter": ("race", 1, 64, 1, 64, 64),
    "plain_histogram": ("race", 1, 64, 4, 64, 64),
    "race_of_blocks": ("race", 2, 32, 64, 64, 64),
    "missing_fence": ("race", 3, 32, 4, 32, 32),
    "barrier_in_branch": ("barrier", 1, 64, 64, 64, 64),
    "barrier_of_one_warp": ("barrier", 1, 64, 64, 64, 64),
    "barriers_in_both_branches": ("barrier", 1, 64, 64, 64, 64),
    "shuffle_without_lanes": ("mask", 1, 32, 32, 32, 32),
    "vote_without_lanes": ("mask", 1, 32, 20, 32, 32),
    "lanes_apart": ("mask", 1, 32, 32, 32, 32),
    "mask_without_itself": ("mask", 1, 32, 32, 32, 32),
    "half_a_warp": ("mask", 1, 48, 48, 48, 48),
    "copy_without_wait": ("missing wait", 1, 32, 32, 128, 128),
    "copy_one_batch_early": ("missing wait", 1, 32, 32, 64, 64),
    "copy_of_others": ("race", 1, 64, 64, 64, 64),
    "endless_flag": ("hang", 1, 32, 32, 32, 32),
    "endless_count": ("hang", 1, 32, 32, 32, 32),
    "endless_barriers": ("hang", 1, 64, 64, 64, 64),
    "endless_lock": ("hang", 2, 32, 1, 32, 32),
    "assertion": ("assert", 1, 32, 32, 32, 32),
    "trap": ("trap", 1, 32, 32, 32, 32),
}
READS_RESULT = {"plain_counter", "race_of_blocks", "endless_lock"}  # and the others' results begin unwritten
STEPS = 1 << 18  # for a hang
ORDERS = ["forward", "backward", "random"]
SLOW = "endless_count"  # takes a second, until a clock has ticked twice


@pytest.fixture(scope="module")
def kernels(emulator_cache):
    return emulator.load(SOURCE)


def marked_line(name):
    lines = SOURCE.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if re.search(rf"// FAULT {name}$", line))


def run(kernels, name, kernel, **options):
    _, grid, block, of_y, of_x, n = FAULTS[name]
    x, y = torch.arange(of_x, dtype=torch.float32), torch.zeros(of_y)
    result = y if name in READS_RESULT else emulator.out(y)
    return emulator.run(getattr(kernels, kernel)[grid, block], result, x, n, steps=STEPS, **options)


@pytest.mark.parametrize(
    ("name", "order"), [(name, order) for name in FAULTS for order in ORDERS[: 1 if name == SLOW else 3]]
)
def test_fault_is_found_in_its_line(kernels, name, order):
    report = run(kernels, name, name, order=order)
    lines = {
        line for fault in report.faults if fault.kind == FAULTS[name][0] for line in (fault.line, fault.other_line)
    }
    assert marked_line(name) in lines, report
    assert {fault.kind for fault in report.faults} == {FAULTS[name][0]}, report
    assert all(fault.kernel == name and Path(fault.file) == SOURCE for fault in report.faults)
    assert all(fault.block is not None and fault.thread is not None for fault in report.faults)
    assert name in str(report)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FAULTS)
def test_no_alarm_without_the_fault(kernels, name, order):
    report = run(kernels, name, f"{name}_right", order=order)
    assert not report.faults, report
    assert not report.unwritten, report


@pytest.mark.parametrize(
    ("name", "words"), [("endless_flag", "ended or passed a barrier in"), ("endless_barriers", "barriers have opened")]
)
def test_a_hang_says_what_was_counted(kernels, name, words):
    [fault] = run(kernels, name, name).faults
    assert words in fault.message, fault


# ---- Faults of another form.


def kinds(report):
    return [fault.kind for fault in report.faults]


def test_dynamic_shared_memory_that_is_too_small(kernels):
    x = torch.arange(32, dtype=torch.float32)
    right = emulator.run(kernels.dynamic_shared[1, 32, 128], emulator.out(torch.zeros(32)), x, 32)
    assert not right.faults
    for given, first in ((124, 31), (0, 0)):
        report = emulator.run(kernels.dynamic_shared[1, 32, given], torch.zeros(32), x, 32)
        assert kinds(report) == ["out of bounds"]
        fault = report.faults[0]
        assert (fault.line, fault.thread) == (marked_line("dynamic_shared"), (first, 0, 0))
        assert f"the launch gave {given} bytes" in fault.message


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "shared", "words"),
    [
        ("never_written", 1, 2048, 0, "2,048 threads per block in x; at most 1,024"),
        ("never_written", 1, (64, 32), 0, "2,048 threads per block; at most 1,024"),
        ("never_written", 1, 0, 0, "a block of no threads"),
        ("never_written", 0, 32, 0, "a grid of no blocks"),
        ("never_written", (1, 70000), 32, 0, "70,000 blocks in y; at most 65,535"),
        ("never_written", 1, 32, 300_000, "300,000 bytes of shared memory; a block has at most 232,448"),
        ("launch_bounds", 1, 96, 0, "96 threads per block, and the kernel's __launch_bounds__ allow 64"),
    ],
)
def test_launches_that_cuda_refuses(kernels, kernel, grid, block, shared, words):
    y = torch.zeros(32)
    report = emulator.run(getattr(kernels, kernel)[grid, block, shared], y, torch.zeros(32), 32)
    assert kinds(report) == ["launch"]
    assert words in report.faults[0].message
    assert report.error in ("invalid argument", "invalid configuration argument")
    assert not report.unwritten


def test_launcher_that_touches_a_tensor(kernels):
    """Each run finds it anew. A function that starts no kernel is a reference for the CPU."""
    for x in (torch.ones(32), torch.zeros(32)):
        y = torch.zeros(32)
        report = emulator.run(kernels.fill_with_first, emulator.out(y), x)
        assert kinds(report) == ["host access"]
        assert report.faults[0].line == marked_line("fill_with_first")
        assert "read of 4 bytes by the launcher, which runs on the CPU: element 0 of argument 2" in str(report)
        assert not emulator.run(kernels.fill_on_the_host, y, x).faults


def test_elements_that_no_thread_writes(kernels):
    x, y = torch.arange(64, dtype=torch.float32), torch.zeros(64)
    report = emulator.run(kernels.never_written[1, 64], emulator.out(y), x, 61)
    (missing,) = report.unwritten
    assert (missing.argument, missing.count, missing.first) == ("argument 1", 4, [(60,), (61,), (62,), (63,)])
    assert report.is_wrong()
    rows = torch.zeros(8, 16)[:, :8]  # of a larger tensor: only its own elements count
    report = emulator.run(kernels.never_written[1, 64], emulator.out(rows), x, 64)
    assert report.unwritten[0].first == [(4, 0), (4, 1), (4, 2), (4, 3)]
    assert not emulator.run(kernels.never_written_right[1, 64], emulator.out(y), x, 64).unwritten


def test_tensor_that_is_given_twice_or_in_parts(kernels):
    y = torch.arange(66, dtype=torch.float32)
    report = emulator.run(kernels.past_end_read[1, 64], y[:64], y[:64], 64)
    assert "argument 1 (float32 [64]) and argument 2 (float32 [64])" in report.faults[0].message
    assert not emulator.run(kernels.never_written_right[1, 32], y[:32], y[32:64], 32).faults


def test_too_deep_recursion_and_division_by_zero(kernels):
    x, y = torch.ones(32), torch.zeros(32)
    assert kinds(emulator.run(kernels.recursion[1, 32], y, x, 32)) == ["stack overflow"]
    assert kinds(emulator.run(kernels.division[1, 32], y, x, 32)) == ["division by zero"]
    assert not emulator.run(kernels.never_written_right[1, 32], y, x, 32).faults  # and it goes on


CLEAN = {
    "lock_for_each_thread": (2, 32, 1),
    "look_back": (8, 32, 256),
    "hand_over": (1, 64, 32),
    "halves_of_a_warp": (1, 32, 32),
    "one_array_of_bytes": (1, 64, 64),
    "same_value": (1, 64, 1),
    "warps_end_early": (1, 64, 32),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CLEAN)
def test_no_alarm_for_code_that_is_right(kernels, name, order):
    grid, block, n = CLEAN[name]
    report = emulator.run(getattr(kernels, name)[grid, block], torch.zeros(n), torch.ones(256) * 2, n, order=order)
    assert not report.faults, report
    notes = {"same_value": ["same value"], "warps_end_early": ["ended before a barrier"]}
    assert [note.kind for note in report.notes] == notes.get(name, [])


def test_values_show_a_race_in_another_order(kernels):
    """One warp reads what the other one has left there, or an earlier launch."""
    for order, first in (("forward", 0), ("backward", 32)):
        x, y = torch.rand(64), torch.zeros(64)
        emulator.run(kernels.race_of_warps[1, 64], y, x, 64, order=order)
        is_wrong = y != x.flip(0)
        assert is_wrong[first : first + 32].any()
        assert not is_wrong[32 - first : 64 - first].any()


def test_watching_can_be_left_out(kernels):
    """Without it races are not found; accesses out of bounds are, as they would crash the process."""
    x, y = torch.zeros(64), torch.zeros(64)
    assert not emulator.run(kernels.race_of_warps[1, 64], y, x, 64, watch=False).faults
    assert kinds(emulator.run(kernels.past_end_write[3, 32], y, x, 64, watch=False)) == ["out of bounds"]
