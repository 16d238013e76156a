"""Output files: tested before anything is measured, written in one piece, JSON with one row a line."""

import io
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .build import Failure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(path: Path, content: bytes | None) -> None:
    """Write in one piece, so that no reader sees half a file. Links, devices and permissions stay what they are.
    content: None only tests whether it can be written, and leaves nothing behind. Raises Failure if it cannot."""
    target = Path(os.path.realpath(path))
    try:
        mode = path.stat().st_mode if path.exists() or os.path.lexists(target) else stat.S_IFREG
        if stat.S_ISREG(mode):
            with tempfile.TemporaryDirectory(prefix=".add2-", dir=target.parent) as folder:
                new = Path(folder, target.name)
                new.write_bytes(b"x" * 4096 if content is None else content)
                if target.exists():
                    target.open("ab").close()  # an error if it is write-protected
                    shutil.copymode(target, new)
                if content is not None:
                    new.replace(target)
        elif content is not None or not stat.S_ISFIFO(mode):  # a pipe's reader would leave after a test
            # A pipe without a reader is an error; O_NONBLOCK does not wait for one.
            with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as file:
                os.set_blocking(file.fileno(), True)
                os.write(file.fileno(), b"")  # which /dev/full refuses
                file.write(content or b"")
    except FileNotFoundError as error:
        raise Failure(f"cannot write {path}: there is no folder {target.parent}") from error
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error


def to_json(content: dict | list[dict]) -> bytes:
    """One row a line, where a row is an entry of a list; four significant digits, as more are noise."""
    content = json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.4g}"))
    return (_lines(content) + "\n").encode()


def _lines(value, is_record: bool = True) -> str:
    if is_record and isinstance(value, dict):
        return "{\n" + ",\n".join(f'"{name}": {_lines(each, False)}' for name, each in value.items()) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(_lines(each, is_record) for each in value) + "\n]"
    return json.dumps(value, separators=(",", ":"))


def to_picture(figure: "Figure", path: Path) -> bytes:
    """A file of the kind that the path's ending says. The same figure gives the same bytes."""
    import matplotlib

    content = io.BytesIO()
    undated = {"Date": None} if path.suffix == ".svg" else {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "add2"}):
        figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=undated)
    return content.getvalue()
