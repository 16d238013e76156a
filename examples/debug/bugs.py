"""Start one kernel with a bug, for the tools of docs/12_debug.md.

python3 examples/debug/bugs.py far                    # or another bug; --help lists them
compute-sanitizer python3 examples/debug/bugs.py far
python3 examples/debug/bugs.py far --emulate          # in the emulator, as where there is no GPU: it names the bug
python3 examples/debug/bugs.py --build                # only compile, for a GPU
"""

import argparse
import contextlib
import ctypes
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import kernels, toolchain

HERE = Path(__file__).resolve().parent
Kernels = kernels.Launchers


def far(run: Kernels) -> torch.Tensor:
    """a store 4 MB behind a tensor of 4 bytes"""
    x = torch.zeros(1, device=run.device)
    run.launch("start_store", x, 1, 1 << 20)
    return x


def near(run: Kernels) -> torch.Tensor:
    """a store directly behind a tensor of 4 bytes"""
    x = torch.zeros(1, device=run.device)
    run.launch("start_store", x, 1, 1)
    return x


def short(run: Kernels) -> torch.Tensor:
    """page 2: b is shorter than a"""
    a, b, c = (torch.zeros(n, device=run.device) for n in (5, 3, 5))
    run.launch("start_add", c, a, b, 5, 256)
    return c


def cpu(run: Kernels) -> torch.Tensor:
    """page 2: b is on the CPU"""
    b, (a, c) = torch.zeros(5), torch.zeros(2, 5, device=run.device)
    run.launch("start_add", c, a, b, 5, 256)
    return c


def launch(run: Kernels) -> torch.Tensor:
    """page 2: 2048 threads per block"""
    a, b, c = torch.zeros(3, 5, device=run.device)
    run.launch("start_add", c, a, b, 5, 2048)
    return c


def empty(run: Kernels) -> torch.Tensor:
    """a tensor that nothing has written: its memory holds an old one"""
    old = torch.ones(5, device=run.device)
    del old
    a, (b, c) = torch.empty(5, device=run.device), torch.zeros(2, 5, device=run.device)
    run.launch("start_add", c, run.unwritten(a), b, 5, 256)
    return c


def race(run: Kernels) -> torch.Tensor:
    """a race between warps: a barrier is missing"""
    out = torch.zeros(1, device=run.device)
    run.launch("start_sum", out, torch.ones(256, device=run.device))
    return out


def barrier(run: Kernels) -> torch.Tensor:
    """half of the threads do not reach a barrier"""
    out = torch.zeros(64, device=run.device)
    run.launch("start_half", out)
    return out


def hang(run: Kernels) -> torch.Tensor:
    """a loop that waits for a flag that no thread sets"""
    flag = torch.zeros(1, device=run.device)
    run.launch("start_wait", flag)
    return flag


BUGS = {f.__name__: f for f in (far, near, short, cpu, launch, empty, race, barrier, hang)}


def build(flags: list[str]) -> Path:
    """Compile bugs.cu for a GPU, unless it is up to date."""
    name = f"bugs-{kernels.architecture()}{''.join(flags)}.so"
    source, library = HERE / "bugs.cu", HERE.parents[1] / "build" / name
    library.parent.mkdir(exist_ok=True)
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        try:
            kernels.compile_source(source, library, *flags)
        except toolchain.Failure as failure:
            sys.exit(str(failure))
    return library


def emulate(name: str, flags: list[str]) -> None:
    """Run a bug in the emulator, and print what it found."""
    if name == "cpu":
        sys.exit("bugs.py: in the emulator all tensors are on the CPU, so it cannot show this bug; it needs a GPU")
    run = kernels.load(HERE / "bugs.cu", *flags, emulate=True)
    with contextlib.suppress(RuntimeError):  # the launcher's error, which the report has, too
        BUGS[name](run)
    print(run.report)


def main() -> None:
    bugs = "\n".join(f"  {name:9} {bug.__doc__}" for name, bug in BUGS.items())
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"bugs:\n{bugs}", formatter_class=form)
    parser.add_argument("bug", nargs="?", choices=BUGS)
    parser.add_argument("--build", action="store_true", help="only compile, for a GPU")
    parser.add_argument("--debug", action="store_true", help="nvcc -g -G: for breakpoints and variables, but slow")
    parser.add_argument("--print", action="store_true", help="the kernel prints what it stores")
    kernels.add_option(parser)
    args = parser.parse_args()
    if not (args.bug or args.build):
        parser.error("name a bug, or --build")
    prints = ["-DPRINT"] * args.print
    if not args.build and (args.emulate or not torch.cuda.is_available()):
        emulate(args.bug, prints)
        return
    library = build([*(["-g", "-G"] if args.debug else ["-lineinfo"]), *prints])
    if args.build:
        print(f"{library} is compiled")
        return
    y = BUGS[args.bug](kernels.OnGpu(ctypes.CDLL(str(library))))
    print(f"launched by process {os.getpid()}", flush=True)
    print("result:", y.flatten()[:5].tolist())


if __name__ == "__main__":
    main()
