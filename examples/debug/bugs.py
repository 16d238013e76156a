"""Start one kernel with a bug, for the tools of docs/12_debug.md.

python3 examples/debug/bugs.py far                    # or another bug; --help lists them
compute-sanitizer python3 examples/debug/bugs.py far
python3 examples/debug/bugs.py --build                # only compile, as without a GPU
"""

import argparse
import ctypes
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transpose"))
import transpose

from lab import toolchain

HERE = Path(__file__).resolve().parent
start = transpose.launch  # calls a launcher with tensors, sizes and torch's current stream


def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, device="cuda")


def far(library):
    """a store 4 MB behind a tensor of 4 bytes"""
    x = zeros(1)
    start(library.start_store, x, 1, 1 << 20)
    return x


def near(library):
    """a store directly behind a tensor of 4 bytes"""
    x = zeros(1)
    start(library.start_store, x, 1, 1)
    return x


def short(library):
    """page 2: b is shorter than a"""
    a, b, c = zeros(5), zeros(3), zeros(5)
    start(library.start_add, c, a, b, 5, 256)
    return c


def cpu(library):
    """page 2: b is on the CPU"""
    a, b, c = zeros(5), torch.zeros(5), zeros(5)
    start(library.start_add, c, a, b, 5, 256)
    return c


def launch(library):
    """page 2: 2048 threads per block"""
    a, b, c = zeros(5), zeros(5), zeros(5)
    start(library.start_add, c, a, b, 5, 2048)
    return c


def empty(library):
    """a tensor that nothing has written: its memory holds an old one"""
    old = torch.ones(5, device="cuda")
    del old
    a, b, c = torch.empty(5, device="cuda"), zeros(5), zeros(5)
    start(library.start_add, c, a, b, 5, 256)
    return c


def race(library):
    """a race between warps: a barrier is missing"""
    out = zeros(1)
    start(library.start_sum, out, torch.ones(256, device="cuda"))
    return out


def barrier(library):
    """half of the threads do not reach a barrier"""
    out = zeros(64)
    start(library.start_half, out)
    return out


def hang(library):
    """a loop that waits for a flag that no thread sets"""
    flag = zeros(1)
    start(library.start_wait, flag)
    return flag


BUGS = {f.__name__: f for f in (far, near, short, cpu, launch, empty, race, barrier, hang)}


def build(flags: list[str]) -> Path:
    """Compile bugs.cu, unless it is up to date."""
    if not toolchain.find_nvcc():
        sys.exit(f"bugs.cu is not compiled. {toolchain.cuda_cure()}")
    name = f"bugs-{transpose.architecture()}{''.join(flags)}.so"
    source, library = HERE / "bugs.cu", HERE.parents[1] / "build" / name
    library.parent.mkdir(exist_ok=True)
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        transpose.compile_source(source, library, *flags)
    return library


def main() -> None:
    bugs = "\n".join(f"  {name:9} {bug.__doc__}" for name, bug in BUGS.items())
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"bugs:\n{bugs}", formatter_class=form)
    parser.add_argument("bug", nargs="?", choices=BUGS)
    parser.add_argument("--build", action="store_true", help="only compile")
    parser.add_argument("--debug", action="store_true", help="nvcc -g -G: for breakpoints and variables, but slow")
    parser.add_argument("--print", action="store_true", help="the kernel prints what it stores")
    args = parser.parse_args()
    flags = ["-g", "-G"] if args.debug else ["-lineinfo"]
    library = build(flags + ["-DPRINT"] * args.print)
    if args.build:
        print(f"{library} is compiled")
        return
    if not torch.cuda.is_available():
        sys.exit("bugs.py: there is no GPU here to run a kernel; --build compiles them")
    y = BUGS[args.bug](ctypes.CDLL(str(library)))
    print(f"launched by process {os.getpid()}", flush=True)
    print("result:", y.flatten()[:5].tolist())


if __name__ == "__main__":
    main()
