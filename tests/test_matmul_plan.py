"""examples/matmul/plan.h: which tile, how many blocks rung 7 takes. Plain C++, which needs no GPU."""

import ctypes
import itertools
import subprocess
from pathlib import Path
from random import Random

import pytest

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "matmul"
H200 = 132  # multiprocessors


class Plan(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int)
        for name in ("width", "cluster_m", "cluster_n", "split", "steps", "clusters", "high", "wide")
    ]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """plan(m, n, k, processors), with the width in rows of A."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.cpp").write_text("""
        #include "plan.h"
        extern "C" void make(int m, int n, int k, int processors, Plan* plan) {
          *plan = make_plan(m, n, k, processors);
          plan->width = kWidths[plan->width];
        }""")
    command = [toolchain.host_compiler(), "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{FOLDER}", f"-I{FOLDER.parent}"]
    subprocess.run([*command, folder / "plan.cpp", "-o", folder / "plan.so"], check=True)
    make = ctypes.CDLL(folder / "plan.so").make

    def call(m, n, k, processors=H200):
        make(m, n, k, processors, ctypes.byref(found := Plan()))
        return found

    return call


def up(x, y):
    return -(-x // y)


def sizes():
    """Sizes of models and at the edges, and random ones: m, n, k, multiprocessors."""
    edges = (1, 64, 128, 129, 300, 4096, 14336, 1 << 20), (8, 64, 200, 4096, 128256), (8, 64, 72, 8192)
    yield from itertools.product(*edges, (1, 78, 114, 132))
    random = Random(0)
    for _ in range(2000):
        m, n, k = (int(2 ** random.uniform(0, 14)) for _ in range(3))
        yield m, 8 * n, 8 * k, random.randint(1, 160)


def places(size, processors):
    """Clusters of so many blocks that run at once, as plan.h has them."""
    return processors * (0, 132, 66, 39, 30, 22, 17, 15, 15)[size] // 132


def test_all_tiles_have_a_block(plan):
    """Tiles cover the result. Clusters run at once, and with as few waves as if all did. Parts of K cover it, and each
    has a step; where there are several, each cluster has one tile."""
    for size in sizes():
        m, n, k, processors = size
        p = plan(*size)
        assert (p.high, p.wide) == (up(n, 128 * p.cluster_m), up(m, p.width * p.cluster_n)), size
        assert (p.cluster_m, p.cluster_n) in ((1, 1), (2, 1), (1, 2)), size
        cluster, tiles = p.cluster_m * p.cluster_n * p.split, p.high * p.wide
        assert cluster <= 8, size
        assert (p.split - 1) * p.steps < up(k, 64) <= p.split * p.steps, size
        at_once = places(cluster, processors)
        assert 0 < p.clusters <= min(at_once, tiles), size
        assert up(tiles, p.clusters) == up(tiles, at_once), size
        assert p.split == 1 or p.clusters == tiles, size


def test_shape(plan):
    """Large products take the widest tile, in pairs. Few rows take the narrowest tile that holds them, and where its
    blocks do not fill the GPU, several share K. Where the last wave is nearly empty, other widths are faster."""

    def shape(*size):
        p = plan(*size)
        return p.width, p.cluster_m, p.cluster_n, p.split

    # The examples of docs/15_matmul.md.
    assert shape(4096, 4096, 4096) == (256, 2, 1, 1)
    assert shape(5000, 5000, 5000) == (224, 2, 1, 1)  # 7 waves of 224 rows of A in place of 7 of 256
    assert shape(200, 8192, 8192) == (104, 1, 2, 1)  # two tiles side by side
    assert shape(300, 14336, 4096) == (160, 2, 1, 1)
    assert shape(16, 4096, 4096)[0] == 16
    assert shape(16, 4096, 4096)[3] > 1
    for m in (1, 16):
        for n in (4096, 14336, 128256):
            assert plan(m, n, 4096).width == 16
