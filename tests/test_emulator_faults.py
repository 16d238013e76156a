"""lab/emulator finds each planted fault of emulator/faults.cu in the line that is marked, and nothing in its twin."""

import re
from pathlib import Path

import pytest
import torch

from lab import emulator

SOURCE = Path(__file__).parent / "emulator/faults.cu"
# name: (kind, grid, block, elements of y, elements of x, n)
FAULTS = {
    "past_end_write": ("out of bounds", 2, 32, 33, 33, 33),
    "past_end_read": ("out of bounds", 2, 32, 33, 33, 33),
    "before_begin": ("out of bounds", 1, 32, 32, 32, 32),
    "vector_over_end": ("out of bounds", 1, 32, 25, 98, 98),
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


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_in_its_line(kernels, name, order):
    report = run(kernels, name, name, order=order)
    lines = {line for fault in report.faults if fault.kind == FAULTS[name][0] for line in (fault.line, fault.other_line)}
    assert marked_line(name) in lines, report
    assert {fault.kind for fault in report.faults} == {FAULTS[name][0]}, report
    assert all(fault.kernel == name and Path(fault.file) == SOURCE for fault in report.faults)
    assert all(fault.block is not None and fault.thread is not None for fault in report.faults)
    assert name in str(report)


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
@pytest.mark.parametrize("name", FAULTS)
def test_no_alarm_without_the_fault(kernels, name, order):
    report = run(kernels, name, f"{name}_right", order=order)
    assert not report.faults, report
    assert not report.unwritten, report
