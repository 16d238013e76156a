"""examples/add_rms_norm/plan.h: which kernel, how many threads and blocks it chooses. Plain C++, which needs no GPU."""

import ctypes
import itertools
import subprocess
from pathlib import Path

import pytest

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "add_rms_norm"
FLOAT32, FLOAT64, FLOAT16 = range(3)  # RmsDtype
ANY_WIDTH, IN_REGISTERS, TILES = range(3)  # Kernel
SIZES = {FLOAT32: 4, FLOAT64: 8, FLOAT16: 2}
MOST_THREADS = 512


class Gpu(ctypes.Structure):
    _fields_ = [("multiprocessors", ctypes.c_int), ("clusters", ctypes.c_int * 5)]
    _fields_ += [(name, ctypes.c_int * 17) for name in ("forward_tiles", "backward_tiles")]


class Plan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("kernel", "tile_rows", "vectors_per_thread")]
    _fields_ += [("is_whole", ctypes.c_bool), ("blocks_x", ctypes.c_int64), ("blocks_y", ctypes.c_int64)]
    _fields_ += [("threads_x", ctypes.c_int), ("threads_y", ctypes.c_int), ("is_cluster", ctypes.c_bool)]

    def threads(self):
        return self.threads_x * self.threads_y


def gpu(multiprocessors, warps, clusters=(0, 0, 0, 0)):
    """One whose multiprocessors run blocks of so many warps together."""
    counts = [0, *(min(warps // n, 32) for n in range(1, 17))]
    return Gpu(multiprocessors, (multiprocessors, *clusters), tuple(counts), tuple(counts))


H200 = gpu(132, 48, (66, 30, 15, 7))  # a thread of forward_tiles has 40 registers
L40 = gpu(142, 40)  # 48
SMALL = gpu(20, 32)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.cpp").write_text("""
        #include "plan.h"
        extern "C" void make(bool is_forward, int64_t rows, int64_t width, int dtype, int64_t address, const Gpu* gpu,
                             Plan* out) {
          void* p = reinterpret_cast<void*>(address);
          const auto type = static_cast<RmsDtype>(dtype);
          if (is_forward) *out = make_plan(RmsForward{p, p, p, p, p, p, 0, rows, width, type, type}, *gpu);
          else *out = make_plan(RmsBackward{p, p, p, p, p, p, p, p, rows, width, type, type}, *gpu);
        }""")
    command = [toolchain.host_compiler(), "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{FOLDER}", f"-I{FOLDER.parent}"]
    subprocess.run([*command, folder / "plan.cpp", "-o", folder / "plan.so"], check=True)
    make = ctypes.CDLL(folder / "plan.so").make
    numbers = ctypes.c_int64
    make.argtypes = [ctypes.c_bool, numbers, numbers, ctypes.c_int, numbers, ctypes.c_void_p, ctypes.c_void_p]

    def call(is_forward, rows, width, dtype=FLOAT16, device=H200, address=1024):
        make(is_forward, rows, width, dtype, address, ctypes.byref(device), ctypes.byref(found := Plan()))
        return found

    return call


WIDTHS = [1, 7, 8, 33, 100, 130, 256, 1000, 1001, 1024, 4096, 4104, 8192, 8200, 16384, 65536, 100001, 131072, 300000]


@pytest.mark.parametrize("device", [H200, L40, SMALL], ids=["H200", "L40", "small"])
def test_plan_at_any_size(plan, device):
    """All rows have a block, all vectors of a row a thread; blocks and clusters are such as the GPU runs."""
    rows = (1, 5, 131, 5000, 200000)
    for forward, n, width, dtype, address in itertools.product((True, False), rows, WIDTHS, SIZES, (0, 2, 16)):
        p, size = plan(forward, n, width, dtype, device, address), (forward, n, width, dtype, address)
        in_vector = 16 // SIZES[dtype]
        is_aligned, is_whole = address % 16 == 0, address % 16 == 0 and width % in_vector == 0
        assert p.is_whole == is_whole, size
        assert 32 <= p.threads() <= MOST_THREADS, size
        assert p.blocks_x > 0, size
        assert (is_aligned and dtype != FLOAT64) or p.kernel == ANY_WIDTH, size
        assert p.is_cluster == (p.kernel == IN_REGISTERS and p.blocks_y > 1), size
        if p.kernel == TILES:
            warps = p.threads() // 32
            blocks = (device.forward_tiles if forward else device.backward_tiles)[warps]
            assert p.blocks_x <= device.multiprocessors * max(blocks, 1), size
            assert p.tile_rows * width % in_vector == 0, size
            assert p.tile_rows * width <= p.threads() * in_vector, size
        elif p.kernel == IN_REGISTERS:
            assert p.blocks_y in (1, 2, 4, 8, 16), size
            assert device.clusters[p.blocks_y.bit_length() - 1] > 0, size
            room = p.threads_x * p.blocks_y * p.vectors_per_thread * in_vector
            assert room >= width + (0 if is_whole else in_vector - 1), size
            assert not forward or p.blocks_x * p.threads_y >= n, size
        elif forward:
            assert p.blocks_x == n, size


def test_blocks_that_fit(plan):
    """Rows of 35 halves: blocks of 352 threads, of which an H200 runs four on a multiprocessor, and an L40 three."""
    for device, blocks in ((H200, 4), (L40, 3)):
        p = plan(True, 100000, 35, FLOAT16, device)
        assert p.threads() == 352
        assert p.blocks_x == device.multiprocessors * blocks


# On both sides of each threshold of plan.h: (rows, width) and what it chooses on an H200 in 16 bits.
TILED = {  # rows of a tile, threads that add up a row, threads of a block, blocks
    "forward": {
        (99999, 9): (336, 1, 384, 298),
        (99999, 12): (256, 1, 384, 391),  # 384 threads, and no more: 128 times 3 vectors, 10 times 35
        (99999, 35): (80, 2, 352, 528),
        (528, 35): (8, 2, 64, 66),  # tiles for half of the multiprocessors
        (99999, 511): (8, 32, 512, 396),  # a vector for each of 512 threads
        (99999, 1022): (4, 32, 512, 396),
    },
    "backward": {
        (99999, 8): (512, 1, 512, 196),
        (99999, 12): (340, 1, 512, 264),  # 512 threads, and no more: 170 times 3 vectors, 64 times 8, 18 times 27
        (99999, 27): (144, 2, 512, 264),
        (99999, 64): (64, 4, 512, 264),  # whole rows of at most 8 vectors, too
        (99999, 383): (8, 16, 384, 264),
    },
}
KEPT = {  # vectors per thread; threads of a row, rows of a block, blocks of a row
    "forward": {
        (99999, 7): (1, 2, 64, 1),
        (99999, 8): (1, 1, 128, 1),
        (527, 35): (1, 8, 16, 1),
        (99999, 513): (1, 96, 1, 1),
        (99999, 256): (1, 32, 4, 1),  # 128 threads
        (99999, 512): (1, 64, 2, 1),
        (99999, 1024): (1, 128, 1, 1),
        (99999, 4096): (1, 512, 1, 1),
        (99999, 4089): (1, 512, 1, 1),  # 512 vectors, wherever a row begins
        (99999, 4090): (2, 288, 1, 1),
        (99999, 4104): (2, 288, 1, 1),
        (99999, 8192): (2, 512, 1, 1),
        (99999, 8200): (4, 96, 1, 4),
        (99999, 16384): (4, 128, 1, 4),
        (99999, 16392): (4, 96, 1, 8),
        (99999, 65536): (4, 128, 1, 16),
        (99999, 131072): (4, 256, 1, 16),
        (99999, 262144): (4, 512, 1, 16),
    },
    "backward": {
        (100, 72): (1, 16, 2, 1),  # few rows: 32 threads
        (99999, 72): (2, 8, 64, 1),  # many: 512
        (99999, 256): (2, 16, 32, 1),
        (99999, 385): (2, 32, 16, 1),
        (99999, 1024): (2, 64, 8, 1),
        (132, 4096): (1, 512, 1, 1),
        (133, 4096): (2, 256, 2, 1),
        (132, 32768): (1, 512, 1, 8),
        (132, 32776): (2, 288, 1, 8),
        (99999, 8192): (2, 512, 1, 1),
        (99999, 8200): (2, 288, 1, 2),
        (99999, 16384): (2, 512, 1, 2),
        (99999, 65536): (2, 512, 1, 8),
        (99999, 131072): (2, 512, 1, 16),
    },
}


@pytest.mark.parametrize("name", TILED)
def test_thresholds(plan, name):
    for (rows, width), right in TILED[name].items():
        p = plan(name == "forward", rows, width)
        found = p.tile_rows, p.threads_x, p.threads(), p.blocks_x
        assert (p.kernel, *found) == (TILES, *right), (rows, width)
    for (rows, width), right in KEPT[name].items():
        p = plan(name == "forward", rows, width)
        found = p.vectors_per_thread, p.threads_x, p.threads_y, p.blocks_y
        assert (p.kernel, *found) == (IN_REGISTERS, *right), (rows, width)


def test_four_elements_in_a_vector(plan):
    """A row of 12,288 float32 numbers: 3072 vectors, four per thread."""
    p = plan(True, 99999, 12288, FLOAT32)
    assert (p.kernel, p.vectors_per_thread, p.threads_x, p.blocks_y) == (IN_REGISTERS, 4, 96, 8)


def test_blocks_of_a_multiprocessor(plan):
    """Where it would run more of them, those of a forward pass get 1536 threads, of a backward pass 1024."""
    for is_forward, width, blocks in ((True, 12, 4), (True, 511, 3), (False, 12, 2), (False, 383, 2)):
        assert plan(is_forward, 999999, width, FLOAT16, gpu(132, 64)).blocks_x == 132 * blocks, width


def test_blocks_of_a_walk(plan):
    """As many as run at the same time; where rows end within a vector, a multiple of eight."""
    for rows, width, blocks in ((9999, 4096, 132), (9999, 16384, 66), (100, 4096, 100), (9999, 1001, 128)):
        assert plan(False, rows, width).blocks_x == blocks, width
    assert plan(False, 50, 1001).blocks_x == 50  # a row for each
    assert [plan(False, 9999, 1001, FLOAT16, gpu(n, 48)).blocks_x for n in (7, 12, 16)] == [8, 8, 16]


def test_any_width(plan):
    """Rows that fit no registers; a backward pass then has blocks for 512 threads' columns, four per multiprocessor."""
    for device, width in ((H200, 262152), (L40, 16392)):
        assert plan(True, 9999, width, FLOAT16, device).kernel == ANY_WIDTH
        assert plan(True, 9999, width - 8, FLOAT16, device).kernel == IN_REGISTERS
    assert plan(True, 9999, 4096, FLOAT64).kernel == ANY_WIDTH
    p = plan(False, 9999, 300000)
    assert (p.kernel, p.blocks_x, p.blocks_y) == (ANY_WIDTH, 8, 74)
    p = plan(False, 9999, 4096, FLOAT64)
    assert (p.kernel, p.blocks_x, p.blocks_y) == (ANY_WIDTH, 132, 4)
    p = plan(False, 9999, 1001, FLOAT64)
    assert (p.kernel, p.blocks_x, p.blocks_y) == (ANY_WIDTH, 528, 2)


def test_a_width_for_each_forward_kernel(plan):
    """None of them is there for nothing."""
    widths = (35, 256, 1001, 4104, 5001, 16384, 100001, 262152)
    found = {(p.kernel, p.vectors_per_thread, p.is_whole) for p in (plan(True, 99999, width) for width in widths)}
    found |= {(p.kernel, 0, p.is_whole) for p in (plan(True, 9, 300001), plan(True, 9, 300000))}
    assert found == {(TILES, 0, False), (ANY_WIDTH, 0, True), (ANY_WIDTH, 0, False)} | {
        (IN_REGISTERS, vectors, is_whole) for vectors in (1, 2, 4) for is_whole in (True, False)
    }
