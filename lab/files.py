"""Output files: written under another name and then renamed, so that no reader sees half a file; JSON with one row per
line; pictures."""

import io
import json
import os
from pathlib import Path

from .build import Failure


def write(path: Path, content: bytes | None) -> None:
    """Replace a file (behind a link: the file that the link names). content None only tests whether that can be done.
    Raises Failure if it cannot."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():  # never replace /dev/null
            raise Failure(f"cannot write {path}: it exists, and is not a regular file")
        new = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            new.write_bytes(content or b"")
            if content is not None:
                new.replace(target)
        finally:
            new.unlink(missing_ok=True)
    except FileNotFoundError as error:
        raise Failure(f"cannot write {path}: there is no folder {target.parent}") from error
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error


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


def to_picture(figure, path: Path) -> bytes:
    """A file of the kind that the path's ending says."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150)
    return content.getvalue()
