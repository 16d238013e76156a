"""Output files: tested before anything is measured, written in one piece, JSON with one row a line."""

import errno
import json
import os
import tempfile
from pathlib import Path

from . import Failure


def check_writable(path: Path) -> str | None:
    """None if write() can write there, else the reason. Leaves nothing behind, and an existing file as it is."""
    try:
        target = path.resolve()
        if path.is_dir():
            return "it is a folder"
        if path.exists():
            with path.open("ab", buffering=0) as file:
                if not target.is_file():  # /dev/stdout and the like; /dev/full refuses even an empty write
                    file.write(b"")
                    return None
        _write_beside(target, b"x" * 4096)[0].unlink()
    except RuntimeError:
        return "its symbolic links go in a circle"
    except OSError as error:
        return f"there is no folder {path.resolve().parent}" if error.errno == errno.ENOENT else error.strerror
    return None


def write(path: Path, content: bytes) -> None:
    """Write in one piece, so that no reader sees half a file. A link and a device stay what they are.

    Raises:
        Failure: it cannot be written; what was there before is still there.
    """
    target = path.resolve()
    try:
        if path.exists() and not target.is_file():
            path.write_bytes(content)
        else:
            unfinished, mode = _write_beside(target, content)
            unfinished.chmod(mode)
            unfinished.replace(target)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error


def _write_beside(target: Path, content: bytes) -> tuple[Path, int]:
    """A file of a new name in the same folder; and the permissions that the target has, or would get."""
    os.umask(mask := os.umask(0))
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~mask
    descriptor, name = tempfile.mkstemp(prefix=".add2-", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError:
        os.unlink(name)
        raise
    return Path(name), mode


def rounded(value, digits: int = 4):
    """The same with significant digits only: more are noise, and make files large."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list) else value


def to_json(content: dict | list, digits: int = 4) -> bytes:
    """JSON with one row a line, where a row is an entry of a list."""

    def line(value) -> str:
        return json.dumps(value, separators=(",", ":"))

    def table(value) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(map(line, value)) + "\n]"
        return line(value)

    def record(value: dict) -> str:
        return "{\n" + ",\n".join(f"{line(name)}: {table(each)}" for name, each in value.items()) + "\n}"

    content = rounded(content, digits)
    text = record(content) if isinstance(content, dict) else "[" + ",\n".join(map(record, content)) + "]"
    return (text + "\n").encode()
