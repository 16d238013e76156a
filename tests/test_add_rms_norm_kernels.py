"""examples/add_rms_norm's kernels and launchers without a GPU: compiled by g++, with fibers for threads."""

import subprocess
from pathlib import Path

import pytest
from test_add_rms_norm import CUDA_HOME, FOLDER

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not CUDA_HOME, reason="needs CUDA's headers"),
]
WIDTHS = [16, 17, 33, 63, 64, 100, 127, 130, 250, 257, 500, 999, 1001, 2047, 3001, 5001, 10001, 50001, 65535, 65536]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("emulated") / "program"
    tests = Path(__file__).parent
    folders = [f"-I{folder}" for folder in (Path(CUDA_HOME, "include"), FOLDER, tests)]
    source = tests / "emulated_add_rms_norm.cpp"
    subprocess.run(["g++", "-O1", "-std=c++17", "-w", *folders, source, "-o", path], check=True)
    return path


def launches(program, rows, width):
    """[kernel, blocks along x and y, threads along x and y] of each launch, and whether an error stays pending."""
    *lines, last = subprocess.check_output([program, str(rows), str(width)], text=True).splitlines()
    found = [[name, *map(int, sizes)] for name, *sizes in map(str.split, lines)]
    return found, last == "error 1"


@pytest.mark.parametrize("multiprocessors", [4, 132])
def test_indices(program, multiprocessors):
    """Values and gradients, with memory that ends right behind each tensor."""
    done = subprocess.run([program, str(multiprocessors)], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 64, 4096, 65536])
def test_rows_are_read_once(program, rows, width):
    """Also those that end within a vector; and short ones do not leave most threads without work."""
    found, _ = launches(program, rows, width)
    assert "twice" not in [name for name, *_ in found]
    _, x, y, threads, groups = found[0]
    if rows * width > 1 << 20 and width < 512:
        assert x * y * threads * groups * 8 <= 2 * rows * width


def test_few_parts_get_few_warps(program):
    """The gradient of 64 rows of 131072 leaves 8 rows of sums: 32 warps to add them would be 24 too many."""
    found, _ = launches(program, 64, 131072)
    name, _, _, lanes, warps = found[-1]
    assert (name, lanes, warps) == ("add_partial", 32, found[-2][1])


def test_pending_error(program):
    """An error of an earlier call of somebody else's is still there for the one who asks for it."""
    assert launches(program, 64, 4096)[1]
