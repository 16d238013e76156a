"""Shared by both programs: arguments, the machine, output files, and how they end.

torch is imported inside functions only: start() has to run before that takes its seconds.
"""

import argparse
import contextlib
import importlib.util
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from .build import Build


# --- start and end


class _Stream:
    """stdout or stderr whose reader may leave, as `| head` does: the rest goes nowhere, and the program goes on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.error = stream, None

    def __getattr__(self, name: str):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
            self.stream.flush()  # so that no error is left for later
        except OSError as error:
            self.error = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        return len(text)


def start() -> None:
    """Call this first: from here on a Ctrl-C, a closed stream and another operating system end in one line at most."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # it was closed, and would otherwise go to the next file that is opened
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or Path(os.devnull).open("w")  # noqa: SIM115
        stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, _Stream(stream))
    if sys.platform != "linux":
        sys.exit(fail(f"add2 needs Linux, and this is {sys.platform}; use WSL 2, a container or another machine", 2))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell's `&` has it ignored
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    os.write(2, f"{Path(sys.argv[0]).name}: error: interrupted\n".encode())
    os._exit(130)


def run(main: Callable[[], int]) -> int:
    """Call main(), and turn errors that the user can cure into one line. Returns the exit status.

    Other errors keep their traceback; with ADD2_DEBUG=1 all do. SIGTERM ends the program as Ctrl-C does.
    """
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = main()
    except KeyboardInterrupt:
        status = fail("interrupted", 130)
    except Exception as error:
        message = _explain(error)
        if message is None or os.environ.get("ADD2_DEBUG"):
            raise
        status = fail(message)
    sys.stdout.flush()
    lost = getattr(sys.stdout, "error", None)
    if lost is not None and not isinstance(lost, BrokenPipeError):
        status = fail(f"cannot write to stdout: {lost.strerror}", max(status, 1))
    return status


def _explain(error: Exception) -> str | None:
    """A message in place of the traceback; None if the error is not one that the user can cure."""
    from .build import Failure, symptoms

    if isinstance(error, Failure):
        return str(error)
    if is_out_of_memory(error):
        return f"out of memory: {str(error).partition(chr(10))[0]}\nGive smaller --sizes or a smaller --batch."
    if str(error).startswith(("add2: ", "torch_launch_add2: ")):  # the operator's own words for an error of CUDA's
        cure = symptoms.explain(str(error), running=True)
        return f"{error}\n{cure}" if cure else None
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Also where it broke the capture of a graph, whose own error then comes last."""
    text = f"{error} {error.__context__}"
    words = ("out of memory", "can't allocate memory", "could not allocate", "bad_alloc")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(word in text for word in words))


def fail(message: object, status: int = 1) -> int:
    """Print one message on stderr; returns the exit status."""
    note(f"{Path(sys.argv[0]).name}: error: {message}")
    return status


def note(text: str) -> None:
    print(text, file=sys.stderr)


# --- arguments; a wrong one ends in one line on stderr and exit status 2


def parser(description: str, compilers: list[str]) -> argparse.ArgumentParser:
    import torch

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    if torch.version.hip:
        parser.error(f"add2 has CUDA kernels only, and torch {torch.__version__} is built for ROCm")
    parser.add_argument("--compiler", choices=compilers, default="jit", help="how add2 is built")
    parser.add_argument("--library", type=library, metavar="FILE", help="load this library; build nothing")
    parser.add_argument("--rebuild", action="store_true", help="build from nothing, even if nothing has changed")
    parser.add_argument("--device", type=device, default=argparse.SUPPRESS, help="cuda, cuda:1, cpu (default: a GPU)")
    return parser


def refuse_same_files(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    """No two of these options may name one file: an output would replace another, or an input."""
    for first, second in itertools.combinations(names, 2):
        one, other = getattr(args, first), getattr(args, second)
        if one and other and one.resolve() == other.resolve():
            parser.error(f"--{first} and --{second} both name {other}, and one would replace the other")


def refuse_nvrtc_on_a_cpu(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """--compiler nvrtc makes no code for a CPU."""
    if args.compiler == "nvrtc" and "device" in args and args.device.type == "cpu":
        parser.error("--compiler nvrtc compiles for a GPU; it cannot be combined with --device cpu")


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
    """The given device, else a GPU if there is one that the library can use. None: a library is not needed.

    Raises:
        Failure: the library lacks the operator, or the CUDA code for the given device; or the GPU's memory is full.
    """
    import torch

    from .build import Failure, has_cuda_code, toolchain

    if library and not hasattr(torch.ops.add2, "torch_launch_add2"):
        raise Failure(f"{library} has no operator add2 in it; give --library a file that a build of add2 has made")
    try:
        asked = args.device if "device" in args else device("cuda" if torch.cuda.is_available() else "cpu")
    except argparse.ArgumentTypeError as error:
        raise Failure(str(error)) from error
    if asked.type == "cuda" and library and not has_cuda_code(library):
        without = f"this build of add2 has no CUDA code: {toolchain.cuda_cure()}"
        if "device" in args:
            raise Failure(without)
        note(f"using the CPU, not the GPU: {without}")
        return device("cpu")
    if asked.type == "cuda":
        torch.cuda.set_device(asked)  # for streams, events and graphs, which belong to the current device
    return asked


def writable(text: str) -> Path:
    """An output file, tested now and not after an hour of measuring."""
    from .files import check_writable

    if reason := check_writable(Path(text)):
        raise argparse.ArgumentTypeError(f"cannot write {text}: {reason}")
    return Path(text)


def library(text: str) -> Path:
    """A shared library that exists."""
    if not os.path.isfile(text):
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return Path(text).resolve()


def picture(text: str) -> Path:
    """A file for a picture, of a kind that can be drawn; and matplotlib to draw it with."""
    if not text.endswith((".png", ".pdf", ".svg")):
        raise argparse.ArgumentTypeError(f"'{text}' does not end in .png, .pdf or .svg")
    if not importlib.util.find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("needs matplotlib: `python3 -m pip install matplotlib`")
    return writable(text)


# --- the machine, and the output files


def command() -> str:
    """The command as the user typed it."""
    return shlex.join(["python3", Path(sys.argv[0]).name, *sys.argv[1:]])


def environment(device: "torch.device") -> dict[str, str | int | float]:
    """The machine and the versions that a figure depends on."""
    import datetime
    import platform

    import torch

    found: dict[str, str | int | float] = {"device": str(device), "name": _cpu_name() or platform.machine()}
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda or "none", "python": platform.python_version()}
    found |= {"threads": torch.get_num_threads(), "date": str(datetime.datetime.now(datetime.timezone.utc).date())}
    found["command"] = command()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"name": properties.name, "l2_bytes": properties.L2_cache_size, **_driver(str(properties.uuid))}
        if clock_khz := getattr(properties, "memory_clock_rate", 0):
            # Two transfers in each cycle of the memory's clock, each as wide as the bus.
            found["peak_gb_per_s"] = 2 * clock_khz * 1e3 * properties.memory_bus_width / 8 / 1e9
    return found


def describe(environment: dict, builds: "Sequence[Build]" = ()) -> str:
    """A line for the machine, and one for each build."""
    cuda = f", CUDA {environment['cuda']}" if environment["cuda"] != "none" else ""
    driver = f"driver {environment['driver']}" if "driver" in environment else f"{environment['threads']} threads"
    lines = ["{device}: {name}, {}; torch {torch}{}, Python {python}".format(driver, cuda, **environment)]
    if environment.get("busy_percent", 0) >= 5:
        lines.append(f"warning: the GPU was {environment['busy_percent']}% busy before we started")
    for build in builds:
        what = "loaded, built before," if build.cached else "built and loaded"
        library = f": {build.library}" if build.library else ""
        lines.append(f"add2 by {build.compiler} ({build.binding}): {what} in {build.seconds:.2f} s{library}")
    return "\n".join(lines)


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return ""


def _driver(uuid: str) -> dict[str, str | int]:
    """The driver's version; and how busy the GPU is, where nvidia-smi lists it: another program may use it."""
    query = ["nvidia-smi", "--query-gpu=driver_version,utilization.gpu,uuid", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
        found: dict[str, str | int] = {}
        for driver, busy, card in (line.split(", ") for line in lines):
            found["driver"] = driver
            if uuid in card and busy.isdecimal():
                found["busy_percent"] = int(busy)
        return found
    return {"driver": "unknown"}


def save(args: argparse.Namespace, content: dict, draw: "Callable[[dict], Figure] | None") -> int:
    """--json and --plot; one that cannot be written does not keep back the other. Returns the exit status."""
    if not args.json and not args.plot:
        return 0
    from . import files
    from .build import Failure

    status = 0
    picture = args.plot if draw else None
    for path, render in ((args.json, files.to_json), (picture, lambda found: files.to_picture(draw(found), picture))):
        try:
            if path:
                files.write(path, render(content))
        except Failure as error:
            status = fail(error)
    return status
