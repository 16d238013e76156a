"""The folder where tests build: kept from run to run, so that one test need not build anything. `pytest --cache-clear`
empties it.

ninja compiles what has changed. But it compares times, and an edit may have an old one (`cp -p`, `tar -x`); it knows
the headers that were included, and not a new one that would be found earlier. In these cases the folder is emptied: a
test never uses a library of other sources than today's.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from lab import files, toolchain

ROOT = Path(__file__).resolve().parent.parent
EMULATOR = ROOT / "lab" / "emulator"
LARGEST = 500_000_000  # bytes
SUFFIXES = (".h", ".cuh", ".cpp", ".cu")


def place() -> str:
    """A name for the folder: torch's load() does not notice another torch or compiler, so each has its own."""
    tools = [os.environ.get("CXX", "c++"), *filter(None, [toolchain.find_nvcc()])]
    versions = [subprocess.getoutput(f"{shlex.quote(str(tool))} --version") for tool in tools]
    found = [torch.__version__, torch.__file__, sys.version, *versions]
    return f"jit cache {hashlib.sha256(repr(found).encode()).hexdigest()[:8]}"  # with a space, as a home may have one


def digests(*folders: Path) -> dict[str, str]:
    """The content of each source."""
    found = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def prepare(folder: Path, now: dict[str, str]) -> None:
    """Empty the folder unless the times of the sources tell ninja what has changed since its last use."""
    record = folder / "sources.json"
    if record.exists():
        old, last = json.loads(record.read_text()), record.stat().st_mtime
        changed = [path for path in now if old.get(path) != now[path]]
        if old.keys() != now.keys() or any(Path(path).stat().st_mtime <= last for path in changed):
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.write(record, json.dumps(now).encode())


def keep_emulator(folder: Path) -> Path:
    """A folder in it for the emulator's libraries, which it names by their sources' content. Another emulator gets a
    new one. Sources in temporary folders leave libraries that are never used again, so a large folder is emptied."""
    sources = sorted(path for path in EMULATOR.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    found = [(str(path), path.read_bytes()) for path in sources]
    kept = folder / f"emulator {hashlib.sha256(repr(found).encode()).hexdigest()[:8]}"
    for other in folder.glob("emulator *"):
        size = sum(path.stat().st_size for path in other.iterdir())
        if other != kept or size > LARGEST:
            shutil.rmtree(other)
    kept.mkdir(exist_ok=True)
    return kept


def finish(folder: Path) -> None:
    """At the end of a run: what was edited during it may have been compiled or not."""
    if (folder / "sources.json").exists():  # another run of pytest may have emptied the cache
        os.utime(folder / "sources.json")
