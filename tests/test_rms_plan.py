"""examples/add_rms_norm/plan.h: which kernel, how many threads and blocks it chooses. Plain C++, which needs no GPU."""

import ctypes
import itertools
import subprocess
from pathlib import Path

import pytest

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "add_rms_norm"
FLOAT32, FLOAT64, FLOAT16 = range(3)  # RmsDtype
SIZES = {FLOAT32: 4, FLOAT64: 8, FLOAT16: 2}
MOST_THREADS = 512


class Gpu(ctypes.Structure):
    _fields_ = [("multiprocessors", ctypes.c_int), ("clusters", ctypes.c_int * 5)]
    _fields_ += [(name, ctypes.c_int * 17) for name in ("forward_tiles", "backward_tiles")]


class Plan(ctypes.Structure):
    _fields_ = [("tile_rows", ctypes.c_int), ("vectors_per_thread", ctypes.c_int)]
    _fields_ += [("blocks_x", ctypes.c_int64), ("blocks_y", ctypes.c_int64)]
    _fields_ += [("threads_x", ctypes.c_int), ("threads_y", ctypes.c_int), ("is_whole", ctypes.c_bool)]

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
          if (is_forward) *out = plan(RmsForward{p, p, p, p, p, p, 0, rows, width, type, type}, *gpu);
          else *out = plan(RmsBackward{p, p, p, p, p, p, p, p, rows, width, type, type}, *gpu);
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
        assert (is_aligned and dtype != FLOAT64) or not (p.tile_rows or p.vectors_per_thread), size
        if p.tile_rows:
            warps = p.threads() // 32
            blocks = (device.forward_tiles if forward else device.backward_tiles)[warps]
            assert p.blocks_x <= device.multiprocessors * max(blocks, 1), size
            assert p.tile_rows * width % in_vector == 0, size
            assert p.tile_rows * width <= p.threads() * in_vector, size
        elif p.vectors_per_thread:
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


def test_plan_chooses_what_was_measured(plan):
    """On an H200: vectors per thread, threads, rows of a block, and blocks that share a row."""
    forward = {256: (1, 32, 4, 1), 1024: (1, 128, 1, 1), 4096: (1, 512, 1, 1), 8192: (2, 512, 1, 1)}
    forward |= {16384: (4, 128, 1, 4), 65536: (4, 128, 1, 16), 131072: (4, 256, 1, 16), 262144: (4, 512, 1, 16)}
    for width, right in forward.items():
        p = plan(True, 16384, width)
        assert (p.vectors_per_thread, p.threads_x, p.threads_y, p.blocks_y) == right, width
    assert plan(True, 16384, 262152).vectors_per_thread == 0  # 16 blocks have no room for that
    many, few = plan(False, 16384, 4096), plan(False, 64, 4096)
    assert (many.vectors_per_thread, many.threads_x, many.threads_y, many.blocks_x) == (2, 256, 2, 132)
    assert (few.vectors_per_thread, few.threads_x, few.threads_y, few.blocks_x) == (1, 512, 1, 64)
    assert plan(False, 16384, 16384).blocks_y == 2
    assert plan(True, 16384, 4096, FLOAT64).vectors_per_thread == 0
