"""Compile the kernels of docs/10_transpose.md; on a GPU check them and time them against torch and a copy.

    python3 examples/transpose/transpose.py --json FILE
    python3 examples/transpose/transpose.py --once            # each kernel once: for a profiler

GPU time without launches, by CUDA graphs. Two matrices of 8192 x 8192 take turns: L2 cannot hold them.
"""

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson, toolchain  # of the workbench only the options, the clock, and what finds nvcc
from lab.bench import clock

RUNGS = {
    1: "one thread per element",
    2: "through a tile in shared memory",
    3: "rows of the tile 4 bytes longer",
    4: "four elements per thread",
    5: "larger tiles, whole words",
}
COPY, TORCH = "y.copy_(x)", "x.t().contiguous()"
DTYPES = (torch.float32, torch.bfloat16)
SIZES = [(8192, 8192), (1, 1), (1, 1000), (33, 31), (65, 127), (1000, 778), (0, 5), (3 << 20, 3), (3, 3 << 20)]


def architecture() -> str:
    """For nvcc: the GPU of this machine, or else sm_90."""
    return "native" if torch.cuda.is_available() else "sm_90"


def compile_source(source: Path, library: Path, *flags: str) -> None:
    """Compile a .cu file for architecture(). Ends the program if nvcc refuses it."""
    arch = architecture()
    command = [toolchain.find_nvcc(), *flags, f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", "-o", library, source]
    if subprocess.run(command).returncode:
        sys.exit(f"{source.name} is not compiled: nvcc's errors stand above")


def load(source: Path) -> ctypes.CDLL | None:
    """Compile a .cu file for the GPU of this machine, or else for sm_90. None without nvcc, or without a GPU."""
    if not toolchain.find_nvcc():
        print(f"{source.name} is not compiled. {toolchain.cuda_cure()}")
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernels.so")
        compile_source(source, library, "-O3")
        if torch.cuda.is_available():
            return ctypes.CDLL(str(library))
    print(f"{source.name} is compiled. There is no GPU here to run it.")
    return None


def launch(function: Callable, *arguments: Tensor | int) -> None:
    """Call a launcher on torch's current stream. Its error message becomes a RuntimeError."""
    function.restype = ctypes.c_char_p
    values = [ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_int64(x) for x in arguments]
    if error := function(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)):
        raise RuntimeError(error.decode())


def transpose(library: ctypes.CDLL, rung: int, x: Tensor, y: Tensor) -> Tensor:
    """Write x transposed to y, by one rung. Both: contiguous, on a GPU, elements of 4 or of 2 bytes."""
    launch(library.launch_4_bytes if x.element_size() == 4 else library.launch_2_bytes, rung, y, x, *x.shape)
    return y


def check(library: ctypes.CDLL) -> None:
    for dtype in DTYPES:
        for height, width in SIZES:
            x = torch.randn(height, width, device="cuda").to(dtype)
            for rung in RUNGS:
                if not torch.equal(transpose(library, rung, x, x.new_zeros(width, height)), x.t()):
                    sys.exit(f"rung {rung} is wrong: {height} x {width} elements of {dtype}")
    print(f"all rungs are right, at {len(SIZES)} sizes, in float32 and bfloat16")


def measure(library: ctypes.CDLL, environment: dict) -> Iterator[dict]:
    """A row for each kernel: microseconds, bytes read and written per second, speed over that of torch and a copy."""
    check(library)
    environment["dtype"] = "float32, bfloat16"
    for dtype in DTYPES:
        xs = [torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2)]
        sets = [(x, torch.empty_like(x)) for x in xs]
        calls = {COPY: [partial(y.copy_, x) for x, y in sets], TORCH: [lambda x=x: x.t().contiguous() for x in xs]}
        calls |= {name: [partial(transpose, library, rung, *each) for each in sets] for rung, name in RUNGS.items()}
        found = {name: clock.gpu(each * 8).median_us for name, each in calls.items()}
        for name, us in found.items():
            row = {"dtype": str(dtype).removeprefix("torch."), "kernel": name, "us": us}
            row |= {
                "gb_per_s": 2 * xs[0].nbytes / us * 1e-3,
                "of_torch": found[TORCH] / us,
                "of_copy": found[COPY] / us,
            }
            yield row


def main() -> None:
    parser = lesson.options(__doc__)
    parser.add_argument("--once", action="store_true", help="only run each kernel once, at 8192 x 8192; no results")
    args = parser.parse_args()
    library = load(Path(__file__).with_name("transpose.cu"))
    if library and args.once:
        for dtype in DTYPES:
            x, y = torch.ones(2, 8192, 8192, device="cuda", dtype=dtype)
            for rung in RUNGS:
                transpose(library, rung, x, y)
        torch.cuda.synchronize()
    elif library:
        lesson.report(args, lambda: True, partial(measure, library))


if __name__ == "__main__":
    main()
