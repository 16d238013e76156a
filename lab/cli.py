"""Shared by both programs: how they start and end, arguments, the device, the machine, output files. torch
is imported inside functions only: start() has to run before that takes its seconds."""

import argparse
import importlib.util
import io
import itertools
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .build import Build


class _Stream(io.TextIOWrapper):
    """stdout or stderr whose reader may leave, as `| head` does: the rest goes nowhere, and the program goes on."""

    error: OSError | None = None

    def write(self, text: str) -> int:
        try:
            super().write(text)
            self.flush()  # so that no error is left for later
        except OSError as error:
            self.error = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        return len(text)


def start(needs_torch: bool = True) -> None:
    """Call this first: from here on a Ctrl-C, a closed stream and another operating system end in one line at most."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # it was closed, and would otherwise go to the next file that is opened
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        encoding = getattr(getattr(sys, name), "encoding", None)
        setattr(sys, name, _Stream(open(number, "wb", closefd=False), encoding, "backslashreplace"))  # noqa: SIM115
    if needs_torch and not importlib.util.find_spec("torch"):
        sys.exit(fail("this Python has no torch; activate its environment, or `python3 -m pip install torch`", 2))
    if sys.platform != "linux":
        sys.exit(fail(f"add2 needs Linux, and this is {sys.platform}; use WSL 2, a container or another machine", 2))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell's `&` has it ignored
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    os.write(2, f"{Path(sys.argv[0]).name}: error: interrupted\n".encode())  # print() may be what is interrupted
    os._exit(130)


def run(main: Callable[[], int]) -> int:
    """Call main(), and turn errors that the user can cure into one line. Returns the exit status. Other errors keep
    their traceback; with ADD2_DEBUG=1 all do. SIGTERM ends the program as Ctrl-C does."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = main()
    except KeyboardInterrupt:
        status = fail("interrupted", 130)
    except Exception as error:
        if os.environ.get("ADD2_DEBUG") or not (message := _explain(error)):
            raise
        status = fail(message)
    sys.stdout.flush()
    lost = getattr(sys.stdout, "error", None)
    if lost and not isinstance(lost, BrokenPipeError):
        status = fail(f"cannot write to stdout: {lost.strerror}", max(status, 1))
    return status


def _explain(error: Exception) -> str | None:
    """A message in place of the traceback; None if the error is not one that the user can cure."""
    from .build import Failure, symptoms

    text = str(error)
    if isinstance(error, (Failure, argparse.ArgumentTypeError)):
        return text
    if is_out_of_memory(error):
        return f"out of memory: {text.partition(chr(10))[0]}\nGive smaller --sizes or a smaller --batch."
    # The operator's own words for an error of CUDA's begin so.
    cure = text.startswith(("add2: ", "torch_launch_add2: ")) and symptoms.explain(text, running=True)
    return f"{text}\n{cure}" if cure else None


def is_out_of_memory(error: BaseException) -> bool:
    """Also where it broke the capture of a graph, whose own error then comes last."""
    words = "MemoryError|out of memory|can't allocate memory|could not allocate|bad_alloc"
    found = re.search(words, f"{type(error)} {error} {error.__context__}")
    return isinstance(error, (MemoryError, RuntimeError)) and found is not None


def fail(message: object, status: int = 1) -> int:
    """Print one message on stderr; returns the exit status."""
    note(f"{Path(sys.argv[0]).name}: error: {message}")
    return status


def note(text: str) -> None:
    print(text, file=sys.stderr)


def parser(description: str, compilers: list[str]) -> argparse.ArgumentParser:
    """The options of both programs. A wrong one ends in one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--compiler", choices=compilers, default="jit", help="how add2 is built (default: jit)")
    parser.add_argument("--library", type=Path, metavar="FILE", help="load this library; build nothing")
    parser.add_argument("--rebuild", action="store_true", help="build from nothing, even if nothing has changed")
    parser.add_argument("--device", type=device, default=argparse.SUPPRESS, help="cuda, cuda:1, cpu (default: a GPU)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the results; .pdf and .svg, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    return parser


def parse(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The arguments. Output files are tested now, and not after an hour of measuring."""
    args = parser.parse_args(argv)
    paths = {name: value for name, value in vars(args).items() if isinstance(value, Path)}
    for one, other in itertools.combinations(paths, 2):
        is_same = os.path.realpath(paths[one]) == os.path.realpath(paths[other])
        if is_same and {one, other} != {"save", "resume"}:  # --save may go on where --resume began
            parser.error(f"--{one} and --{other} both name {paths[other]}, and one would replace the other")
    if args.library and not args.library.is_file():
        parser.error(f"--library: there is no file {args.library}")
    args.library = args.library and args.library.absolute()  # the loader looks for a bare name elsewhere
    for name in paths.keys() - {"library", "resume"}:
        from . import files

        try:
            files.write(paths[name], None)
        except files.Failure as error:
            parser.error(f"--{name}: {error}")
    if args.plot and args.plot.suffix not in (".png", ".pdf", ".svg"):
        parser.error(f"--plot: '{args.plot}' does not end in .png, .pdf or .svg")
    if args.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: `python3 -m pip install matplotlib`")
    if args.compiler == "nvrtc" and "device" in args and args.device.type == "cpu":
        parser.error("--compiler nvrtc compiles for a GPU; it cannot be combined with --device cpu")
    return args


def device(text: str) -> "torch.device":
    """A device of this machine; a GPU with its number."""
    import torch

    if not text.startswith(("cpu", "cuda")):
        raise argparse.ArgumentTypeError(f"'{text}' is not a device that add2 runs on; use cuda, cuda:N or cpu")
    try:
        return torch.empty(0, device=text).device
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch is built without CUDA
        reason = "its memory is full" if is_out_of_memory(error) else str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {reason}; use --device cpu") from error


def has_gpu(args: argparse.Namespace) -> bool:
    """Whether a GPU will be used, unless the build turns out to have no CUDA code."""
    import torch

    return args.device.type == "cuda" if "device" in args else torch.cuda.is_available()


def choose_device(args: argparse.Namespace, library: Path | None) -> "torch.device":
    """The given device, else a GPU if there is one that the library (if any) can use. Failure if it cannot use it."""
    import torch

    from .build import Failure, has_cuda_code, toolchain

    chosen = args.device if "device" in args else device("cuda" if has_gpu(args) else "cpu")
    if chosen.type == "cuda" and library and not has_cuda_code(library):
        without = f"this build of add2 has no CUDA code: {toolchain.cuda_cure()}"
        if "device" in args:
            raise Failure(without)
        note(f"using the CPU, not the GPU: {without}")
        return torch.device("cpu")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # for streams, events and graphs, which belong to the current device
    return chosen


def command() -> str:
    """The command as the user typed it."""
    return shlex.join(["python3", Path(sys.argv[0]).name, *sys.argv[1:]])


def environment(device: "torch.device") -> dict[str, str | int | float]:
    """The machine and the versions that a figure depends on."""
    import torch

    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    found = {"device": str(device), "name": cpu[1] if cpu else os.uname().machine, "torch": torch.__version__}
    found |= {"cuda": torch.version.cuda or "none", "python": sys.version.split()[0], "command": command()}
    found |= {"threads": torch.get_num_threads(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"name": properties.name, "l2_bytes": properties.L2_cache_size}
        smi = subprocess.getoutput("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
        found["driver"] = driver[0] if (driver := re.match(r"[\d.]+", smi)) else "unknown"
        if clock_khz := getattr(properties, "memory_clock_rate", 0):
            # Two transfers in each cycle of the memory's clock, each as wide as the bus.
            found["peak_gb_per_s"] = 2 * clock_khz * 1e3 * properties.memory_bus_width / 8 / 1e9
    return found


def describe(environment: dict, builds: "Sequence[Build]" = ()) -> str:
    """A line for the machine, and one for each build."""
    cuda = f", CUDA {environment['cuda']}" if environment["cuda"] != "none" else ""
    driver = f"driver {environment['driver']}" if "driver" in environment else f"{environment['threads']} threads"
    lines = ["{device}: {name}, {}; torch {torch}{}, Python {python}".format(driver, cuda, **environment)]
    for build in builds:
        how = "loaded, built before," if build.cached else "built and loaded"
        library = f": {build.library}" if build.library else ""
        lines.append(f"add2 by {build.compiler} ({build.binding}): {how} in {build.seconds:.2f} s{library}")
    return "\n".join(lines)


def save(args: argparse.Namespace, content: dict, draw: str) -> int:
    """Write --json, and --plot by the function of that name, if there is something to draw. Returns the exit status."""
    if not args.json and not args.plot:
        return 0
    from . import files
    from .build import Failure

    try:
        if args.json:
            files.write(args.json, files.to_json(content))
        if args.plot and draw:
            files.write(args.plot, files.to_picture(pkgutil.resolve_name(draw)(content), args.plot))
    except Failure as error:
        return fail(error)
    return 0
