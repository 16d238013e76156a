"""Output files: tested before anything is measured, written in one piece, JSON with one row a line."""

import io
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .build import Failure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_writable(path: Path) -> str | None:
    """None if write() can write there, else the reason. Leaves nothing behind, and an existing file as it is."""
    try:
        if path.is_dir():
            return "it is a folder"
        if path.exists() and not path.is_fifo():  # a pipe's reader would leave when it is closed again
            with path.open("ab", buffering=0) as file:
                file.write(b"")  # which /dev/full refuses
        if _is_file(path):
            _write_new(path.resolve(), b"x" * 4096).unlink()
    except FileNotFoundError:
        return f"there is no folder {path.resolve().parent}"
    except (OSError, RuntimeError) as error:  # RuntimeError: symbolic links in a circle, before Python 3.13
        return getattr(error, "strerror", None) or str(error)
    return None


def write(path: Path, content: bytes) -> None:
    """Write in one piece, so that no reader sees half a file. A link and a device stay what they are.

    Raises:
        Failure: it cannot be written; what was there before is still there.
    """
    try:
        if _is_file(path):
            _write_new(path.resolve(), content).replace(path.resolve())
        else:
            with open(path, "wb", opener=_open_at_once) as file:  # Path.open() takes no opener
                file.write(content)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error


def _open_at_once(path: str, flags: int) -> int:
    """A pipe without a reader is an error; it does not wait for one."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def _is_file(path: Path) -> bool:
    """Or will be one; /dev/stdout is none."""
    return path.is_file() or not path.exists()


def _write_new(target: Path, content: bytes) -> Path:
    """A file of a new name in the same folder, with the permissions of the target, if that exists."""
    path = target.with_name(f".add2-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with path.open("xb") as file:
            file.write(content)
        if target.exists():
            shutil.copymode(target, path)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def to_json(content: dict | list[dict]) -> bytes:
    """One row a line, where a row is an entry of a list; four significant digits, as more are noise."""
    content = json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.4g}"))

    def line(value) -> str:
        return json.dumps(value, separators=(",", ":"))

    def lines(value) -> str:
        is_table = isinstance(value, list) and value and isinstance(value[0], dict)
        return "[\n" + ",\n".join(map(line, value)) + "\n]" if is_table else line(value)

    def record(value: dict) -> str:
        return "{\n" + ",\n".join(f"{line(name)}: {lines(each)}" for name, each in value.items()) + "\n}"

    text = record(content) if isinstance(content, dict) else "[" + ",\n".join(map(record, content)) + "]"
    return (text + "\n").encode()


def to_picture(figure: "Figure", path: Path) -> bytes:
    """A file of the kind that the path's ending says. The same figure gives the same bytes."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "add2"}):
        figure.savefig(
            content, format=path.suffix[1:], dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {}
        )
    return content.getvalue()
