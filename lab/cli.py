"""Command-line arguments that both programs share. A wrong one ends in one line on stderr and exit status 2."""

import argparse
import errno
import json
import re
import sys
import tempfile
from pathlib import Path

import torch

from . import picture as pictures
from .build import toolchain

MAX_SIZE = 2**40


def parser(description: str, compilers: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--compiler", choices=compilers, default="jit", help="how add2 is built")
    parser.add_argument("--library", type=library, metavar="FILE", help="load this ready library, and build none")
    parser.add_argument("--rebuild", action="store_true", help="build from nothing, even if nothing has changed")
    parser.add_argument("--device", type=device, default=argparse.SUPPRESS, help="cuda, cuda:1, cpu (default: a GPU)")
    return parser


def choose_device(args: argparse.Namespace, has_cuda_code: bool) -> torch.device:
    """The device that was asked for, else a GPU if there is one that the build can use.

    Raises:
        BuildError: a GPU was asked for, and the build has no CUDA code.
    """
    asked = getattr(args, "device", None)
    if asked is not None and (asked.type == "cpu" or has_cuda_code):
        if asked.type == "cuda":
            torch.cuda.set_device(asked)  # for streams, events and graphs, which belong to the current device
        return asked
    without = f"this build of add2 has no CUDA code: {toolchain.cuda_cure()}"
    if asked is not None:
        raise toolchain.BuildError(without)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if not has_cuda_code:
        print(f"using the CPU, not the GPU: {without}", file=sys.stderr)
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def has_gpu(args: argparse.Namespace) -> bool:
    """Whether a GPU will be used, unless the build turns out to have no CUDA code."""
    asked = getattr(args, "device", None)
    return torch.cuda.is_available() if asked is None else asked.type == "cuda"


def device(text: str) -> torch.device:
    """A device that is there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a device that add2 runs on; use cuda, cuda:N or cpu")
    if text == "cpu":
        return torch.device(text)
    if not torch.cuda.is_available():
        reason = "no GPU is found" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        raise argparse.ArgumentTypeError(f"{text} is not there: {reason}; use --device cpu")
    index = int(text[5:] or torch.cuda.current_device())
    if index >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(f"{text} is not there: this machine has {torch.cuda.device_count()} GPU(s)")
    return torch.device("cuda", index)


def sizes(text: str) -> list[int]:
    """Numbers of elements: '1000', '2^20', '1000,2^20', and by powers of two '2^10..2^20'."""
    found: list[int] = []
    for part in text.replace(" ", ",").split(","):
        if part:
            first, _, last = part.partition("..")
            value, end = size(first), size(last or first)
            if end < value:
                raise argparse.ArgumentTypeError(f"the range {part} is empty: {end} is less than {value}")
            while value <= end:
                found.append(value)
                value *= 2
    if not found:
        raise argparse.ArgumentTypeError("no size is given; examples: 1048576, 2^20, 2^10..2^28")
    return found


def size(text: str) -> int:
    match = re.fullmatch(r"(\d+)(?:(?:\^|\*\*)(\d+))?", text.strip().replace("_", ""))
    exponent = int(match[2] or 1) if match else 0
    value = int(match[1]) ** exponent if match and exponent <= 64 else 0
    if not 1 <= value <= MAX_SIZE:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a number of elements from 1 to 2^40; examples: 1048576, 2^20, 2^10..2^28"
        )
    return value


def offset(text: str) -> int:
    if not text.isdecimal() or int(text) > 1024:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of elements from 0 to 1024")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def writable(text: str) -> Path:
    """A file that can be written, tried out now and not after an hour of measuring."""
    path = Path(text)
    try:
        if path.exists():
            path.open("ab").close()
        if path.is_symlink() or (path.exists() and not path.is_file()):
            pass  # /dev/stdout and the like
        else:
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        reason = f"there is no folder {path.resolve().parent}" if error.errno == errno.ENOENT else error.strerror
        raise argparse.ArgumentTypeError(f"cannot write {text}: {reason}") from error
    return path


def library(text: str) -> Path:
    """A shared library that is there."""
    path = Path(text).resolve()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def picture(text: str) -> Path:
    """A file for a picture, of a kind that can be drawn; and something to draw it with."""
    path = writable(text)
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"'{text}' is no .png, .pdf or .svg")
    if reason := pictures.missing():
        raise argparse.ArgumentTypeError(reason)
    return path


def record(text: str) -> dict:
    """What `time.py --json` wrote earlier."""
    try:
        content = json.loads(Path(text).read_text())
        for row in content["results"]:
            for name in ("compiler", "call", "dtype", "n", "clock", "median_us", "low_us", "high_us"):
                row[name]
        content["environment"]["name"], content["environment"]["torch"]
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text} is not what `time.py --json FILE` writes") from error
    return content
