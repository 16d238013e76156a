"""Output files, and JSON with one row per line."""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path


def target(text: str) -> Path:
    """The type of an option that names an output file: a mistake is found now, not after an hour of measuring. Of a
    symbolic link it returns the target, so that the link stays one."""
    path = Path(os.path.realpath(text))
    try:
        if path.exists() and not path.is_file():  # never replace /dev/null
            raise argparse.ArgumentTypeError(f"{path} is not a regular file")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # as write() does
            Path(folder, path.name).touch()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {path}: {error.strerror}") from None
    return path


def picture(text: str) -> Path:
    """The type of an option that names a picture to draw."""
    if Path(text).suffix not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"the name of a picture ends in .png, .pdf or .svg, not as {text}")
    if not importlib.util.find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("drawing needs matplotlib: `python3 -m pip install matplotlib`")
    return target(text)


def write(path: Path, content: bytes) -> None:
    """Replace a file: written elsewhere and then moved, so that no reader sees half of it. It keeps the file's mode."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # only this user can enter it
        new = Path(folder, path.name)
        new.write_bytes(content)
        if path.exists():
            new.chmod(path.stat().st_mode)
        new.replace(path)


def end_of_closed_pipe() -> int:
    """The exit status of a program whose standard output nobody reads any more. What is still in it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141  # as a shell says of a program that SIGPIPE has ended


def to_json(content: dict | list[dict]) -> bytes:
    """One row per line, where a row is an entry of a list; four significant digits, as more are noise."""
    content = json.loads(json.dumps(content, default=str), parse_float=lambda text: float(f"{float(text):.4g}"))
    return (_lines(content) + "\n").encode()


def _lines(value, is_record: bool = True) -> str:
    if is_record and isinstance(value, dict):
        return "{\n" + ",\n".join(f'"{name}": {_lines(each, False)}' for name, each in value.items()) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(_lines(each, is_record) for each in value) + "\n]"
    return json.dumps(value, separators=(",", ":"))
