"""Run a kernel on the CPU, and print what it does to memory and what is wrong with it.

    python3 -m lab.emulator transpose.cu                      # lists launchers and kernels
    python3 -m lab.emulator transpose.cu launch_4_bytes 1 float32[256,192]:out float32[192,256] 192 256
    python3 -m lab.emulator program.cu main 1000              # a whole program, with arguments of its own
    python3 -m lab.emulator minimal_kernel.cu 'add<<<4, 256>>>' float32[1000]:out float32[1000] float32[1000] 1000

An argument is a number, null, true, false, or a tensor: DTYPE[SIZES], random unless :zeros, :ones or :arange follows.
:out marks a result: its elements count as not yet written. A launcher's stream is added. A kernel takes its geometry
in <<<grid, block, shared bytes>>>, where 2x3 means two blocks (or threads) in x and three in y.

The report counts requests and sectors: a request is one instruction of one warp, a sector is a piece of 32 bytes that
it touches, and `ideal` is the number of sectors that would hold the bytes. In the second command, 1 is the first
argument of this launcher: the number of its kernel.
"""

import argparse
import re
import sys
from collections.abc import Sequence

import torch

from . import BuildError, load, out, run
from .run import ORDERS, Bound, Function, Kernels, Out

TENSOR = re.compile(r"(\w+)\[([\d,\s]*)\](?::(\w+))?")
LAUNCH = re.compile(r"([\w:]+)\s*<<<([^<>]*)>>>")
MOST_BYTES = 1 << 36
FILLS = ("out", "zeros", "ones", "arange", "random")


class Mistake(Exception):
    """Of the user. Its text is one line."""


def make_tensor(dtype: str, sizes: str, fill: str | None) -> torch.Tensor | Out:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise Mistake(f"{dtype} is no dtype of torch; expected one such as float32, bfloat16, int32")
    if fill not in (None, *FILLS):
        raise Mistake(f":{fill} is unknown; expected one of {', '.join(f':{name}' for name in FILLS)}")
    shape = [int(size) for size in sizes.replace(" ", "").split(",") if size]
    if (count := torch.Size(shape).numel()) * kind.itemsize > MOST_BYTES:
        raise Mistake(f"{dtype}[{sizes}] has {count:,} elements; expected at most {MOST_BYTES >> 30} GB")
    if fill == "out":
        return out(torch.zeros(shape, dtype=kind))
    if fill in ("zeros", "ones"):
        return getattr(torch, fill)(shape, dtype=kind)
    if fill == "arange":
        return torch.arange(count).to(kind).view(shape)
    if kind.is_floating_point:
        return torch.randn(shape).to(kind)
    return torch.randint(0, 2 if kind == torch.bool else 100, shape).to(kind)


def parse_argument(text: str) -> object:
    if match := TENSOR.fullmatch(text):
        return make_tensor(*match.groups())
    words = {"null": None, "none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for number in (lambda x: int(x, 0), float):
        try:
            return number(text)
        except ValueError:
            pass
    raise Mistake(
        f"{text} is no argument; expected a number, null, true, false or a tensor such as float32[256,192]:out"
    )


def find_function(kernels: Kernels, text: str) -> Function | Bound:
    """A launcher's name, or kernel<<<grid, block, shared bytes>>>."""
    match = LAUNCH.fullmatch(text)
    name = match[1] if match else text
    try:
        function = getattr(kernels, name)
    except AttributeError as error:
        raise Mistake(str(error)) from None
    if not match and function.is_kernel:
        raise Mistake(f"{name} is a kernel: give its geometry, '{name}<<<grid, block>>>'")
    if match and not function.is_kernel:
        raise Mistake(f"{name} is a launcher: call it without <<<{match[2]}>>>")
    if not match:
        return function
    try:
        grid, block, *shared = (tuple(map(int, part.strip().split("x"))) for part in match[2].split(","))
        return function[(grid, block, *(size[0] for size in shared))]
    except (ValueError, TypeError):
        raise Mistake(f"<<<{match[2]}>>>: expected <<<grid, block>>> or <<<grid, block, shared bytes>>>") from None


def show_results(values: Sequence[object]) -> None:
    for i, value in enumerate(values, 1):
        if isinstance(value, Out):
            some = value.tensor.flatten()[:6].tolist()
            more = ", ..." if value.tensor.numel() > 6 else ""
            print(f"argument {i}: [{', '.join(f'{x:g}' for x in some)}{more}]")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing is wrong, 1 if something is, 2 if it could not run."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python3 -m lab.emulator", description=__doc__, formatter_class=form)
    parser.add_argument("file", help="a .cu file")
    parser.add_argument("function", nargs="?", help="a launcher, or kernel<<<grid, block>>>; without one, list them")
    parser.add_argument("arguments", nargs="*", default=[], help="numbers and tensors, as the launcher takes them")
    parser.add_argument("-I", metavar="DIR", action="append", default=[], help="a folder for headers")
    parser.add_argument("-D", metavar="NAME", action="append", default=[], help="define a macro: NAME or NAME=VALUE")
    parser.add_argument("--order", choices=ORDERS, default="forward", help="of threads and blocks")
    parser.add_argument("--seed", type=int, default=0, help="of the random order, and of random tensors")
    parser.add_argument(
        "--steps", type=int, default=1 << 25, help="a hang is so many steps in which no thread ends (default: 2^25)"
    )
    parser.add_argument("--no-counts", action="store_true", help="do not count memory traffic: faster")
    args = parser.parse_args(arguments)
    try:
        torch.manual_seed(args.seed)
        kernels = load(args.file, [f"-I{name}" for name in args.I] + [f"-D{name}" for name in args.D])
        if not args.function:
            for each in kernels.functions.values():
                print(f"{'kernel  ' if each.is_kernel else 'launcher'} {each}")
            return 0
        function = find_function(kernels, args.function)
        is_program = args.function == "main"
        values = args.arguments if is_program else [parse_argument(text) for text in args.arguments]
        options = {"order": args.order, "seed": args.seed, "counts": not args.no_counts, "steps": args.steps}
        report = run(function, *values, **options)
    except (Mistake, TypeError, BuildError) as error:
        print(f"emulator: {error}", file=sys.stderr)
        return 2
    print(report)
    show_results(values)
    if is_program and report.result:
        print(f"main returned {report.result}")
    return int(report.is_wrong() or (is_program and bool(report.result)))


if __name__ == "__main__":
    sys.exit(main())
