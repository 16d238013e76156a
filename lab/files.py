"""Output files, and JSON with one row per line."""

import argparse
import json
import os
from pathlib import Path


def target(text: str) -> Path:
    """The type of an option that names an output file: a mistake is found now, not after an hour of measuring."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if path.exists() and not path.is_file():  # never replace /dev/null
        raise argparse.ArgumentTypeError(f"{path} is not a regular file")
    return path


def write(path: Path, content: bytes) -> None:
    """Replace a file: written under another name and then renamed, so that no reader sees half of it."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)


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
