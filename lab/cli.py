"""Shared by both programs: options, the device, the machine, and how a program ends."""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import files, sources, toolchain
from .build import ROOT, Build, Failure


def run(main: Callable[[], int]) -> int:
    """Call main(), and turn a Failure into one line. Returns the exit status."""
    try:
        return main()
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except Failure as error:
        return fail(error)
    except BrokenPipeError:  # of `| head`, which has read enough
        return files.end_of_closed_pipe()


def fail(message: object, status: int = 1) -> int:
    """Print one message on stderr; returns the exit status."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return status


def parser(description: str, compilers: list[str]) -> argparse.ArgumentParser:
    """The options of both programs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--compiler", choices=compilers, default="jit", help="how add2 is built (default: jit)")
    parser.add_argument("--library", type=Path, metavar="FILE", help="load this library; build nothing")
    parser.add_argument("--rebuild", action="store_true", help="build from nothing, even if nothing has changed")
    parser.add_argument("--device", help="cuda, cuda:1, cpu (default: a GPU if there is one)")
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write all figures to FILE")
    return parser


def parse(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The arguments; a wrong one ends the program."""
    args = parser.parse_args(argv)
    if args.device:
        try:
            if torch.device(args.device).type not in ("cuda", "cpu"):
                raise RuntimeError("add2 has kernels for CUDA and for CPUs")
            args.device = torch.empty(0, device=args.device).device  # a GPU with its number
        except (RuntimeError, AssertionError) as error:  # AssertionError: torch is built without CUDA
            parser.error(f"--device {args.device} cannot be used: {str(error).splitlines()[0]}; try --device cpu")
    return args


def expect_different_files(parser: argparse.ArgumentParser, args: argparse.Namespace, *options: str) -> None:
    """Refuse a file that two of these options name: the program would write the second over the first."""
    first: dict[Path, str] = {}
    for option in options:
        path = getattr(args, option) and Path(os.path.realpath(getattr(args, option)))
        if path in first:
            parser.error(f"--{first[path]} and --{option} name the same file, {path}; give each its own")
        if path:
            first[path] = option


def has_gpu(args: argparse.Namespace) -> bool:
    """Whether a GPU will be used, unless the build turns out to have no CUDA code."""
    return args.device.type == "cuda" if args.device else torch.cuda.is_available()


def choose_device(args: argparse.Namespace, library: Path | None) -> torch.device:
    """The given device, else a GPU if there is one that the loaded library (if any) can use. Failure if it cannot."""
    if not has_gpu(args):
        return torch.device("cpu")
    if library and not torch.ops.add2.has_cuda():
        without = f"this build of add2 has no CUDA code: {toolchain.cuda_cure()}"
        if args.device:
            raise Failure(without)
        print(f"using the CPU, not the GPU: {without}", file=sys.stderr)
        return torch.device("cpu")
    chosen = args.device or torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_device(chosen)  # for streams, events and graphs, which belong to the current device
    return chosen


def environment(device: torch.device, places: Sequence[str] = ()) -> dict[str, Any]:
    """The machine, the versions and the state of the code that a figure depends on, and the command.

    places: folders and files whose kernels run although no module of theirs is imported.
    """
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    found: dict[str, Any] = {"device": str(device), "name": cpu[1] if cpu else "CPU", "torch": torch.__version__}
    found |= {"cuda": torch.version.cuda or "none", "python": sys.version.split()[0]}
    found |= {"threads": torch.get_num_threads(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    found["command"] = shlex.join(["python3", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["name"] = properties.name
        if clock_khz := getattr(properties, "memory_clock_rate", 0):
            # Two transfers in each cycle of the memory's clock, each as wide as the bus.
            found["peak_gb_per_s"] = 2 * clock_khz * 1e3 * properties.memory_bus_width / 8 / 1e9
    return found | sources.of_this_process(places)


def describe(environment: dict, builds: Sequence[Build] = ()) -> str:
    """A line for the machine, and one for each build."""
    lines = ["{device}: {name}; torch {torch}, CUDA {cuda}, Python {python}, {threads} threads".format(**environment)]
    lines += [f"add2 by {each.compiler}: built and loaded in {each.seconds:.2f} s: {each.library}" for each in builds]
    return "\n".join(lines)
