"""examples/int4_linear/plan.h: which kernel, tile and number of blocks it chooses. It is plain C++ and needs no GPU."""

import ctypes
import json
import math
import subprocess
from pathlib import Path

import pytest

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "int4_linear"


class Planned(ctypes.Structure):
    """Plan in plan.h; then the tiles of its shape, and the blocks that run at once without and with its splits."""

    _fields_ = [(name, ctypes.c_int) for name in ("shape", "splits", "whole", "batch")]
    _fields_ += [("us", ctypes.c_double)] + [(name, ctypes.c_longlong) for name in ("tiles", "slots", "split_slots")]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.cpp").write_text("""
        #include "plan.h"
        struct Planned { Plan plan; long long tiles, slots, split_slots; };
        extern "C" void make(int n, int k, int batch, bool has_wgmma, Planned* out) {
          const Plan p = make_plan(n, k, batch, 132, has_wgmma);
          const BlockShape s = kShapes[p.shape < 0 ? 0 : p.shape];
          const long long tiles = tiles_of(s, p.splits, n, p.batch, 132) * divide_up(p.batch, s.batch);
          *out = {p, tiles, slots_of(s, 1, 132), slots_of(s, p.splits, 132)};
        }""")
    command = [toolchain.host_compiler(), "-O1", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{FOLDER}", f"-I{FOLDER.parent}"]
    subprocess.run([*command, folder / "plan.cpp", "-o", folder / "plan.so"], check=True)
    function = ctypes.CDLL(folder / "plan.so").make

    def call(n, k, batch, has_wgmma=True):
        function(n, k, batch, has_wgmma, ctypes.byref(found := Planned()))
        return found

    return call


def test_plan_chooses_what_was_measured(plan):
    """Its choice takes less than 1% longer than the best of all shapes in the geometric mean, and nowhere 16%."""
    rows = json.loads((FOLDER.parents[1] / "docs" / "results" / "h200-int4-plans.json").read_text())["results"]
    logs = []
    for row in rows:
        p = plan(row["n"], row["k"], row["batch"])
        found = row["us"].get(f"{p.shape}/{p.splits}" + (f"/{p.whole}" if p.whole else ""))
        if found and p.batch == row["batch"]:  # not all were measured everywhere
            logs.append(math.log(found / min(row["us"].values())))
    assert len(logs) > 0.95 * len(rows)
    assert sum(logs) / len(logs) < math.log(1.01)
    assert max(logs) < math.log(1.16)


def test_plan_at_any_size(plan):
    """Also at sizes that were not measured: no second wave for less than a tenth of the work, no needless cluster."""
    steps, cliffs, batches = 0, 0, [1]
    while batches[-1] < 4096:
        batches.append(max(batches[-1] + 1, int(batches[-1] * 1.1)))
    ns = (512, 576, 1024, 1536, 2560, 3584, 5120, 6144, 7168, 8576, 11008, 12288, 17088, 18944, 22016, 28672, 32768)
    for n in ns:
        for k in (1024, 1088, 1536, 2560, 4096, 5120, 7168, 11008, 18944, 32768):
            before = 0
            for batch in sorted({*batches, 129, 192}):
                p, size = plan(n, k, batch), (n, k, batch)
                assert 0 <= p.shape < 23, size
                assert 0 < p.batch <= batch, size
                assert p.splits <= -(-k // 128), size
                if p.whole:  # full waves, and then tiles that several blocks share
                    assert p.whole % p.slots == 0, size
                    assert 0 < (p.tiles - p.whole) * p.splits <= p.split_slots, size
                elif p.splits > 1:
                    assert p.tiles * p.splits <= p.split_slots, size
                else:
                    assert p.tiles <= p.slots or p.tiles >= 1.1 * p.slots, size
                assert p.us > (n * k / 2 + 3 * n * k / 128) / 4.8e6, size
                if batch >= 10:
                    steps, cliffs = steps + 1, cliffs + (p.us > 1.3 * before)
                    assert p.us < 1.6 * before, size
                before = p.us
    assert cliffs < 0.015 * steps


def test_plan_of_other_gpus(plan):
    """What moves fewer bytes: codes once for every 8 rows of x, or once, and weights of 16 bits out and in."""
    codes, weights = 64 + 2 + 1, 2 * 128  # of 128 columns of a row
    for batch in range(1, 1000):
        is_dequantized = -(-batch // 8) * codes > codes + 2 * weights
        assert plan(4096, 4096, batch, has_wgmma=False).shape == (-1 if is_dequantized else 0), batch
    assert [plan(4096, 4096, batch, has_wgmma=False).shape for batch in (64, 65)] == [0, -1]
