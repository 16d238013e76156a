"""lab/emulator counts memory traffic as the hardware does: by hand for emulator/counts.cu, by Nsight Compute for the
five transpositions (docs/results)."""

import json
from pathlib import Path

import pytest
import torch

from lab import emulator

pytestmark = pytest.mark.anywhere

ROOT = Path(__file__).resolve().parents[1]
WARPS = 4  # of each kernel in counts.cu

# Of each kernel what differs from one load and one store of 4 bytes by neighbours: WARPS requests of 4 sectors.
PLAIN = {"load_requests": WARPS, "load_sectors": 4 * WARPS, "store_requests": WARPS, "store_sectors": 4 * WARPS}
COUNTS = {
    "every_second": {"load_sectors": 8 * WARPS},  # 256 bytes
    "far_apart": {"load_sectors": 32 * WARPS},
    "one_further": {"load_sectors": 5 * WARPS, "store_sectors": 5 * WARPS},
    "gather": {"load_sectors": 32 * WARPS},  # 148 bytes apart
    "broadcast": {"load_requests": 2 * WARPS, "load_sectors": 2 * WARPS},
    "structs_of_12": {"load_requests": 3 * WARPS, "load_sectors": 3 * 12 * WARPS},  # each load touches all 384 bytes
    "vectors": {"load_sectors": 16 * WARPS, "store_sectors": 16 * WARPS},
    "pairs": {},
    "doubles": {
        "shared_store_requests": 2 * WARPS,
        "shared_store_wavefronts": 2 * 2 * WARPS,  # the two halves of a warp
        "shared_load_requests": 2 * WARPS,
        "shared_load_wavefronts": (2 + 4) * WARPS,  # every second double: two lanes per pair of banks
        "shared_load_bank_conflicts": 2 * WARPS,
    },
    "quads": {
        "load_sectors": 16 * WARPS,
        "shared_store_requests": WARPS,
        "shared_store_wavefronts": 4 * WARPS,  # the four quarters of a warp
        "shared_load_requests": 2 * WARPS,
        "shared_load_wavefronts": (4 + 32) * WARPS,  # each of a quarter's eight lanes wants the same four banks
        "shared_load_bank_conflicts": 28 * WARPS,
    },
    "columns": {
        "load_requests": 32,
        "load_sectors": 4 * 32,
        "shared_store_requests": 64,
        "shared_store_wavefronts": 64,
        "shared_load_requests": 2 * WARPS,
        "shared_load_wavefronts": (32 + 1) * WARPS,
        "shared_load_bank_conflicts": 31 * WARPS,
    },
    "stencil": {
        "load_requests": WARPS + 2,
        "load_sectors": 5 * WARPS + 2,
        "shared_store_requests": WARPS + 2,
        "shared_store_wavefronts": WARPS + 2,
        "shared_load_requests": 3 * WARPS,
        "shared_load_wavefronts": 3 * WARPS,
    },
    "scan": {  # 7 distances; at 32 the first warp has nothing to add, at 64 the first two
        "shared_store_requests": (1 + 7) * WARPS,
        "shared_store_wavefronts": (1 + 7) * WARPS,
        "shared_load_requests": (7 + 7 + 1) * WARPS - 1 - 2,
        "shared_load_wavefronts": (7 + 7 + 1) * WARPS - 1 - 2,
    },
    "some_lanes_per_turn": {"load_requests": 8 * WARPS, "load_sectors": 8 * 4 * WARPS},
    "loops_of_other_lengths": {"load_requests": 2 * (3 + 1) * WARPS, "load_sectors": 2 * (3 + 1) * 4 * WARPS},
    "calls": {"load_requests": 2 * 2 * WARPS, "load_sectors": 2 * 2 * 4 * WARPS},
    "copies": {
        "load_requests": 0,
        "load_sectors": 0,
        "copy_requests": WARPS,
        "copy_sectors": 16 * WARPS,
        "shared_load_requests": WARPS,
        "shared_load_wavefronts": 4 * WARPS,  # the first word of each 16 bytes: 8 of 32 banks
        "shared_load_bank_conflicts": 3 * WARPS,
    },
    "atomics": {
        "store_requests": 0,
        "store_sectors": 0,
        "atomic_requests": WARPS,
        "atomic_sectors": 4 * WARPS,
        "shared_store_requests": 1,
        "shared_store_wavefronts": 1,
        "shared_atomic_requests": WARPS,
    },
    "bytes": {"load_sectors": WARPS, "store_sectors": WARPS},
    "rows": {"load_requests": 200, "load_sectors": 40 * 100, "store_requests": 2, "store_sectors": 5},  # 40 threads
    "neighbours_share": {
        "shared_store_requests": 2 * WARPS,
        "shared_store_wavefronts": (2 + 4) * WARPS,
        "shared_load_requests": 2 * WARPS,
        "shared_load_wavefronts": (1 + 2) * WARPS,  # half as many as otherwise
    },
    "long_loop": {"load_requests": 3 * 3000 * WARPS, "load_sectors": (4 + 1 + 1) * 3000 * WARPS},
}


@pytest.fixture(scope="module")
def kernels(emulator_cache):
    return emulator.load(ROOT / "tests/emulator/counts.cu")


def traffic(counts):
    left_out = {name for name in vars(counts) if "ideal" in name} | {"most_requests"}
    return {name: x for name, x in vars(counts).items() if isinstance(x, int) and name not in left_out and x}


@pytest.mark.parametrize("order", ["forward", "random"])
@pytest.mark.parametrize("number", range(len(COUNTS)), ids=list(COUNTS))
def test_counts_by_hand(kernels, number, order):
    report = emulator.run(kernels.launch_counts, number, torch.zeros(4096), torch.ones(8192), order=order)
    launch, name = report.launches[0], list(COUNTS)[number]
    assert not report.faults, report
    assert (launch.kernel, launch.grid, launch.block) == (name, (1, 1, 1), (128, 1, 1))
    assert traffic(launch) == {key: x for key, x in (PLAIN | COUNTS[name]).items() if x}


def test_lines_add_up(kernels):
    launch = emulator.run(kernels.launch_counts, 10, torch.zeros(4096), torch.ones(8192)).launches[0]
    source = (ROOT / "tests/emulator/counts.cu").read_text().splitlines()
    by_text = {source[line.line - 1].strip(): line for line in launch.lines}
    conflicts = by_text["y[threadIdx.x] = tile[lane][warp] + padded[lane][warp];"]
    assert (conflicts.bank_conflicts, conflicts.store_sectors, conflicts.load_sectors) == (124, 16, 0)
    total = emulator.Line()
    for line in launch.lines:
        total.add(line)
    assert traffic(total) == traffic(launch)
    assert launch.bank_conflicts == 124
    assert launch.wavefronts == 132 + 64


def test_ideal_sectors(kernels):
    """As few sectors as hold the bytes: a broadcast needs one."""
    found = [
        emulator.run(kernels.launch_counts, number, torch.zeros(4096), torch.ones(8192)).launches[0]
        for number in (0, 4, 6)
    ]
    assert [launch.load_sectors_ideal for launch in found] == [4 * WARPS, 2 * WARPS, 16 * WARPS]
    assert [launch.store_sectors_ideal for launch in found] == [4 * WARPS, 4 * WARPS, 16 * WARPS]


def test_the_warp_that_makes_most_requests(kernels):
    """Its loads and stores; shared memory does not count."""
    found = [
        emulator.run(kernels.launch_counts, number, torch.zeros(4096), torch.ones(8192)).launches[0].most_requests
        for number in (0, 11, 19)
    ]
    assert found == [1 + 1, 2 + 1, 100 + 1]


def test_counts_can_be_left_out(kernels):
    report = emulator.run(kernels.launch_counts, 0, torch.zeros(4096), torch.ones(8192), counts=False)
    assert traffic(report.launches[0]) == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transpositions_against_nsight_compute(emulator_cache, dtype):
    """Nsight Compute counted 8192 x 8192 elements on an H200, 1024 times the 256 x 256 here. Its wavefronts
    (shared_turns) include turns that other requests took."""
    kernels = emulator.load(ROOT / "examples/transpose/transpose.cu")
    rows = json.loads((ROOT / "docs/results/h200-transpose-ncu.json").read_text())["results"]
    rows = [row for row in rows if row["dtype"] == dtype]
    function = kernels.launch_4_bytes if dtype == "float32" else kernels.launch_2_bytes
    x = torch.randn(256, 256).to(getattr(torch, dtype))
    for rung, row in enumerate(rows, 1):
        y = torch.zeros_like(x)
        report = emulator.run(function, rung, emulator.out(y), x, 256, 256)
        launch = report.launches[0]
        assert torch.equal(y, x.t())
        assert not report.faults, report
        found = (launch.store_requests, launch.store_sectors, launch.shared_load_requests)
        assert [1024 * x for x in found] == [row["stores"], row["sectors_stored"], row["shared_reads"]]
        wavefronts = 1024 * launch.shared_load_wavefronts
        assert wavefronts <= row["shared_turns"] <= 1.16 * wavefronts


def test_transpositions_against_the_hardware_in_small(emulator_cache):
    """96 x 128 elements of float32: Nsight Compute counted these on an H100, to the last one."""
    kernels = emulator.load(ROOT / "examples/transpose/transpose.cu")
    x, y = torch.randn(96, 128), torch.zeros(128, 96)
    plain, tile = (emulator.run(kernels.launch_4_bytes, rung, y, x, 96, 128).launches[0] for rung in (1, 2))
    assert (plain.store_sectors, plain.store_sectors_ideal, tile.store_sectors) == (12288, 1536, 1536)
    assert [launch.most_requests for launch in (plain, tile)] == [2, 2]  # one load and one store, in each of 12 blocks
    assert (plain.bank_conflicts, tile.bank_conflicts) == (0, 11904)
