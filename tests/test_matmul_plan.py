"""examples/matmul/plan.h: which tile, how many blocks rung 7 takes. Plain C++, which needs no GPU."""

import ctypes
import itertools
import subprocess
from pathlib import Path

import pytest

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "matmul"
H200 = 132  # multiprocessors


class Plan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("shape", "blocks", "tiles", "tile_n", "cluster")]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """plan(m, n, k, processors, first shapes): by default all shapes."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.cpp").write_text("""
        #include "plan.h"
        extern "C" void make(int m, int n, int k, int processors, int count, int* out) {
          const Plan p = make_plan(m, n, k, processors, count ? count : kShapeCount);
          const Shape shape = kShapes[p.shape];
          const int all[] = {p.shape, p.blocks, p.tiles, shape.tile_n, shape.cluster};
          for (int i = 0; i < 5; ++i) out[i] = all[i];
        }""")
    command = [toolchain.host_compiler(), "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{FOLDER}", f"-I{FOLDER.parent}"]
    subprocess.run([*command, folder / "plan.cpp", "-o", folder / "plan.so"], check=True)
    make = ctypes.CDLL(folder / "plan.so").make

    def call(m, n, k, processors=H200, count=0):
        make(m, n, k, processors, count, ctypes.byref(found := Plan()))
        return found

    return call


def up(x, y):
    return -(-x // y)


def test_all_tiles_have_a_block(plan):
    """Tiles cover the result; blocks fit the GPU at once, in whole clusters, and with as few waves as if all ran."""
    sizes = (1, 64, 128, 129, 300, 4096, 14336, 1 << 20)
    for m, n, k, processors in itertools.product(sizes, (8, 64, 200, 4096, 128256), (8, 64, 72, 8192), (78, 114, 132)):
        p, size = plan(m, n, k, processors), (m, n, k, processors)
        assert p.tiles == up(m, 128 * p.cluster) * up(n, p.tile_n), size
        assert 0 < p.blocks <= processors, size
        assert p.blocks % p.cluster == 0, size
        clusters = p.blocks // p.cluster
        assert clusters <= p.tiles, size
        assert up(p.tiles, clusters) == up(p.tiles, processors // p.cluster), size


def test_shape(plan):
    """Large products take the widest tile, in clusters: it reads least from shared memory. Few columns take the
    narrowest that holds them. Where one wave of wide tiles leaves multiprocessors idle, narrower ones are faster."""

    def shape(*size):
        p = plan(*size)
        return p.tile_n, p.cluster

    assert shape(4096, 4096, 4096) == (256, 2)  # 4 waves of 256 columns
    assert shape(8192, 8192, 8192) == (192, 2)  # 21 waves of 192 columns in place of 16 of 256
    assert shape(4096, 64, 4096) == (64, 1)
    assert shape(128, 128, 4096) == (64, 1)  # two blocks of 64 columns in place of one of 128
    assert shape(16, 4096, 4096) == (64, 1)  # 64 blocks in place of 16
    assert plan(128, 128, 4096).blocks == 2
    # The examples of docs/15_matmul.md.
    assert shape(200, 8192, 8192) == (128, 2)  # one wave: 64 clusters for 66 places
    assert shape(200, 14336, 4096) == (256, 2)  # one wave of 256 columns in place of two of 128
    assert shape(200, 4096, 4096) == (64, 1)  # one wave: 128 blocks
    assert shape(300, 14336, 4096) == (192, 1)  # two waves of 192 columns in place of two of 256, with padding


def test_waves(plan):
    """One more row of tiles than a wave holds costs a second wave, if no narrower tile avoids it: then fewer blocks,
    which share the work evenly."""
    full = plan(128 * 66 * 2, 256, 4096)  # 66 clusters of two blocks, a tile of 256 x 256 for each
    assert (full.tile_n, full.blocks, full.tiles) == (256, 132, 66)
    more = plan(128 * 68 * 2, 256, 4096, count=1)
    assert (more.blocks, more.tiles) == (68, 68)


def test_gated_epilogue_has_one_shape(plan):
    for m, n, k in ((16, 4096, 4096), (128, 16, 64), (16384, 28672, 4096)):
        assert plan(m, n, k, count=1).shape == 0
