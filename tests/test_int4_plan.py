"""examples/int4_linear/plan.h: which kernel, tile and number of blocks it chooses. It is plain C++ and needs no GPU."""

import concurrent.futures
import ctypes
import itertools
import json
import math
import random
import statistics
import subprocess
from pathlib import Path

import pytest
from int4_calls import Int4Call, Plan

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "int4_linear"
MEASURED = FOLDER.parents[1] / "docs" / "results" / "h200-int4-plans.json"
WRAPPER = """
#include "int4_linear.h"
#include "plan.h"

struct Planned {
  Plan plan;
  long long tiles, resident, resident_split;  // blocks that run at once: without its splits, with them
  int rows, width;                            // of W and of x in a tile
};

extern "C" void make(int n, int k, int batch, bool has_wgmma, Planned* out) {
  const Plan p = make_plan(n, k, batch, 132, has_wgmma);
  const BlockShape s = kShapes[p.shape < 0 ? 0 : p.shape];
  const long long tiles = tiles_of(s, p.splits, n, p.batch, 132) * divide_up(p.batch, s.batch);
  *out = {p, tiles, resident_blocks(s, 1, 132), resident_blocks(s, p.splits, 132), s.rows, s.batch};
}

extern "C" bool keeps_each(int n, int k, int batch, int processors, bool has_wgmma) {
  const Plan a = make_plan(n, k, batch, processors, has_wgmma);
  for (int time = 0; time < 2; ++time) {
    const Plan b = kept_plan(n, k, batch, processors, has_wgmma);
    if (a.shape != b.shape || a.splits != b.splits || a.unsplit != b.unsplit || a.batch != b.batch || a.us != b.us)
      return false;
  }
  return true;
}

// The model's time of a plan, whether or not make_plan would choose it.
extern "C" double model(int shape, int splits, int unsplit, int n, int k, int batch) {
  const BlockShape& s = kShapes[shape];
  const long long of_w = tiles_of(s, splits, n, batch, 132), tiles = of_w * divide_up(batch, s.batch);
  const int rows = s.is_wgmma ? s.rows : static_cast<int>(divide_up(n / 16, of_w)) * 16;
  const double last = model_us(s, tiles - unsplit, rows, splits, k, resident_blocks(s, splits, 132));
  return unsplit ? last + model_us(s, unsplit, rows, 1, k, resident_blocks(s, 1, 132)) : last;
}

extern "C" void fill(Int4Call* call, Plan* plan, char* at) {
  call->packed = at + 1;
  call->scale = at + 2;
  call->zero = at + 3;
  call->n = 4;
  call->k = 5;
  call->is_float16 = true;
  call->is_gated = false;
  call->y = at + 6;
  call->x = at + 7;
  call->bias = at + 8;
  call->batch = 9;
  call->squares = reinterpret_cast<float*>(at + 16);
  call->eps = 11;
  call->residual = at + 12;
  call->norm_weight = at + 13;
  call->weighted = at + 14;
  call->next_squares = reinterpret_cast<float*>(at + 20);
  plan->shape = 1;
  plan->splits = 2;
  plan->unsplit = 3;
  plan->batch = 4;
  plan->us = 5;
}
extern "C" int shape_count() { return kShapeCount; }
extern "C" int size_of_both() { return sizeof(Int4Call) * 1000 + sizeof(Plan); }
"""


class Planned(ctypes.Structure):
    """As in WRAPPER."""

    _fields_ = [
        ("plan", Plan),
        *((name, ctypes.c_longlong) for name in ("tiles", "resident", "resident_split")),
        *((name, ctypes.c_int) for name in ("rows", "width")),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.cpp").write_text(WRAPPER)
    command = [toolchain.host_compiler(), "-O1", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{FOLDER}", f"-I{FOLDER.parent}"]
    subprocess.run([*command, folder / "plan.cpp", "-o", folder / "plan.so"], check=True)
    found = ctypes.CDLL(folder / "plan.so")
    found.model.restype = ctypes.c_double
    found.keeps_each.restype = ctypes.c_bool
    return found


@pytest.fixture(scope="module")
def plan(library):
    def call(n, k, batch, has_wgmma=True):
        library.make(n, k, batch, has_wgmma, ctypes.byref(found := Planned()))
        return found.plan

    return call


def measured():
    """(n, k, batch, {(shape, splits, unsplit): microseconds}) of each size in the record."""
    for row in json.loads(MEASURED.read_text())["results"]:
        names = {name: (*map(int, name.split("/")), 0)[:3] for name in row["us"]}
        yield row["n"], row["k"], row["batch"], {names[name]: us for name, us in row["us"].items()}


def test_structs(library):
    """The ones for ctypes have the layout of those in C++."""
    call, plan = Int4Call(), Plan()
    assert library.size_of_both() == ctypes.sizeof(Int4Call) * 1000 + ctypes.sizeof(Plan)
    library.fill(ctypes.byref(call), ctypes.byref(plan), ctypes.c_void_p(4096))
    assert [getattr(plan, name) for name, _ in Plan._fields_] == [1, 2, 3, 4, 5]
    found = {name: getattr(call, name) for name, _ in Int4Call._fields_}
    assert found == {
        **{"packed": 4097, "scale": 4098, "zero": 4099, "n": 4, "k": 5, "is_float16": True, "is_gated": False},
        **{"y": 4102, "x": 4103, "bias": 4104, "batch": 9, "squares": 4112, "eps": 11},
        **{"residual": 4108, "norm_weight": 4109, "weighted": 4110, "next_squares": 4116},
    }


def test_few_rows(plan):
    """For up to 8 rows, a shape of few_rows.cuh with 8 rows of x, all at once: only these have versions for a norm."""
    generator = random.Random(0)
    for _ in range(1000):
        n, k = (64 * generator.randint(1, generator.choice((10, 500, 3000))) for _ in "nk")
        batch, has_wgmma = generator.randint(1, 8), generator.random() < 0.8
        found = plan(n, k, batch, has_wgmma)
        assert found.shape in ((0, 1, 2) if has_wgmma else (0,))
        assert (found.batch, found.unsplit) == (batch, 0)


def test_model_is_near_what_was_measured(library):
    """Of all plans in the record, most of which make_plan does not choose: 6% off on average, 45% at most."""
    logs = []
    for n, k, batch, times in measured():
        logs += [math.log(max(library.model(*plan, n, k, batch), 1e-3) / us) for plan, us in times.items()]
    assert len(logs) > 2500
    assert abs(statistics.mean(logs)) < 0.02
    assert statistics.mean(map(abs, logs)) < math.log(1.065)
    assert max(map(abs, logs)) < math.log(1.45)


def test_model_worked_through(library):
    """The example of docs/16b_int4_many_rows.md, by hand: 32 steps, of 128 blocks in one wave, and the join."""
    step = 0.203 + 0.00418 * 128 + 128 * (128 * (64 + 2 + 1)) / 14e6
    by_hand = 0.81 + 32 * step + 0.93 + (0.38 * 2 + 0.000099 * 128 * 128)
    assert library.model(20, 2, 0, 8192, 8192, 128) == pytest.approx(by_hand)
    assert round(by_hand, 1) == 30.2


@pytest.mark.parametrize(("size", "most"), [(512, 416), (2048, 64), (4096, 32), (8192, 16), (12288, 16)])
def test_last_number_of_rows_of_few_rows(plan, size, most):
    """The table of docs/16b_int4_many_rows.md."""
    assert plan(size, size, most).shape < 6
    assert plan(size, size, most + 1).shape >= 6


# Sizes at which another constant, or another threshold, of plan.h would choose another plan. (n, k, batch): shape,
# splits, unsplit tiles, rows of x.
CHOICES = {
    (512, 256, 33): (9, 1, 0, 33),
    (512, 512, 33): (4, 1, 0, 33),
    (1024, 4096, 65): (5, 2, 0, 65),
    (1024, 8192, 390): (37, 4, 0, 390),
    (2560, 14336, 17): (7, 8, 0, 17),
    (4096, 2048, 17): (3, 1, 0, 17),
    (5120, 64, 600): (29, 1, 0, 600),
    (5120, 8192, 390): (21, 1, 0, 390),
    (5760, 8192, 322): (43, 2, 0, 322),
    (6144, 64, 350): (38, 1, 0, 350),
    (6144, 4096, 33): (10, 2, 0, 33),
    (6144, 14336, 17): (8, 4, 0, 17),
    (8192, 8192, 128): (20, 2, 0, 128),
    (8576, 64, 1): (0, 1, 0, 1),
    (8576, 4096, 17): (8, 3, 0, 17),
    (8576, 4096, 33): (12, 3, 0, 33),
    (8576, 8192, 33): (12, 3, 0, 33),
    (11008, 1088, 2048): (33, 1, 0, 2048),
    (18944, 4096, 257): (41, 2, 132, 257),
    (28672, 1088, 272): (21, 1, 0, 272),
    (28672, 8192, 1): (2, 1, 0, 1),
    (28672, 8192, 350): (43, 3, 264, 350),
}


@pytest.mark.parametrize("size", CHOICES, ids=str)
def test_plan_chooses(size, plan):
    found = plan(*size)
    assert (found.shape, found.splits, found.unsplit, found.batch) == CHOICES[size]


def test_a_kept_plan_is_that_of_its_size(library):
    """Asked by several threads, in random order. Sizes differ in one number only: none may be left out of the key."""
    sizes = list(itertools.product((4096, 8576), (4096, 8192), (8, 17, 350), (78, 132), (False, True)))

    def ask(seed):
        return [size for size in random.Random(seed).sample(sizes, len(sizes)) if not library.keeps_each(*size)]

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert [*threads.map(ask, range(4))] == [[]] * 4


def test_plan_chooses_what_was_measured(plan):
    """Its choice takes less than 1% longer than the best of all shapes in the geometric mean, and nowhere 16%."""
    logs, sizes = [], 0
    for n, k, batch, times in measured():
        sizes += 1
        p = plan(n, k, batch)
        found = times.get((p.shape, p.splits, p.unsplit))
        if found and p.batch == batch:  # not all were measured everywhere
            logs.append(math.log(found / min(times.values())))
    assert len(logs) > 0.95 * sizes
    assert sum(logs) / len(logs) < math.log(1.01)
    assert max(logs) < math.log(1.16)


def test_plan_at_any_size(library):
    """Also at sizes that were not measured: no second wave for less than a tenth of the work, no needless cluster."""
    steps, cliffs, batches, found = 0, 0, [1], Planned()
    while batches[-1] < 4096:
        batches.append(max(batches[-1] + 1, int(batches[-1] * 1.1)))
    ns = (512, 576, 1024, 1536, 2560, 3584, 5120, 6144, 7168, 8576, 11008, 12288, 17088, 18944, 22016, 28672, 32768)
    for n in ns:
        for k in (1024, 1088, 1536, 2560, 4096, 5120, 7168, 11008, 18944, 32768):
            before = 0
            for batch in sorted({*batches, 129, 192}):
                library.make(n, k, batch, True, ctypes.byref(found))
                p, size = found.plan, (n, k, batch)
                assert 0 <= p.shape < library.shape_count(), size
                assert 0 < p.batch <= batch, size
                assert p.splits <= -(-k // 128), size
                if p.unsplit:  # full waves, and then tiles that several blocks share
                    assert p.unsplit % found.resident == 0, size
                    assert 0 < (found.tiles - p.unsplit) * p.splits <= found.resident_split, size
                elif p.splits > 1:
                    assert found.tiles * p.splits <= found.resident_split, size
                else:
                    assert found.tiles <= found.resident or found.tiles >= 1.1 * found.resident, size
                if found.width > 80:  # no narrower tile would do
                    tiles_of_x = -(-p.batch // found.width)
                    assert found.width - (8 if found.rows == 128 else 16) < p.batch / tiles_of_x, size
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
