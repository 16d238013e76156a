"""The measurements in docs/results, and which of them are older than the code that they measure.

    python3 docs/records.py                    # name the older ones, and the files that have changed since
    python3 docs/records.py --renew NAME ...   # only names and files have changed? Then note today's files

A record's environment has the commit that was measured and a checksum of each source file, without comments and
spaces; lab/sources.py writes both. --renew needs nvcc and cuobjdump (the CUDA toolkit and Triton have it). It compiles
the kernels as they were and as they are, and refuses if one that was measured has other machine code now. It does not
compare what chooses and launches them: first read `git diff COMMIT` of these files.
"""

import argparse
import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT))

from lab import files, sources, toolchain  # noqa: E402

used: list[tuple[str, bool]] = []  # the records that load() has read, and whether for times of the host


class Number(float):
    """A measured number. Where no format is given it has three digits, and no exponent."""

    def __format__(self, how: str) -> str:
        return super().__format__(how or (".0f" if self >= 1000 else ".3g"))


def read(name: str) -> dict | list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text(), parse_float=Number)


def load(name: str, part: str = "results", is_host: bool = False) -> list[dict]:
    """The rows of a file, or of all runs in it. is_host: for times of the host, which depend on all of the code."""
    used.append((name, is_host))
    content = read(name)
    return [row for run in content for row in run.get(part, [])] if isinstance(content, list) else content[part]


def load_runs(name: str) -> list[dict]:
    """The runs of a file, which time the host."""
    used.append((name, True))
    content = read(name)
    assert isinstance(content, list)
    return content


def environment(name: str) -> dict:
    """Of a record; of several runs the first one's."""
    content = read(name)
    return (content[0] if isinstance(content, list) else content)["environment"]


@functools.cache
def changed_files(name: str, is_host: bool = True) -> tuple[str, ...]:
    """The source files that are no longer those that the record measured; without is_host only those of kernels."""
    measured = environment(name).get("sources", {})
    counts = sources.KERNELS + sources.HOST * is_host
    return tuple(path for path, then in measured.items() if path.endswith(counts) and not is_same(ROOT / path, then))


def is_same(path: Path, then: str) -> bool:
    return path.exists() and sources.checksum(path) == then


def older() -> Iterator[str]:
    """A line for each record that is older than its code."""
    for name in sorted(path.stem for path in RESULTS.glob("*.json")):
        kernels, files = changed_files(name, is_host=False), changed_files(name)
        if files:
            what = "is older than its kernels" if kernels else "is older only in times of the host"
            yield f"{name} (commit {environment(name).get('commit', 'unknown')}) {what}: {', '.join(kernels or files)}"


def machine_code(kernels: list[Path], root: Path) -> list[str]:
    """The instructions of each kernel in these files, without the kernel's name."""
    triton = Path(sys.prefix).glob("lib/python*/site-packages/triton/backends/nvidia/bin")
    dump = shutil.which("cuobjdump", path=":".join([toolchain.tool_path(), *map(str, triton)]))
    if not (dump and shutil.which("nvcc")):
        sys.exit("this needs nvcc and cuobjdump on PATH")
    found: list[str] = []
    for file in kernels:
        with tempfile.TemporaryDirectory() as folder:
            places = [f"-I{root / place}" for place in ("include", "kernel", "examples", "examples/common")]
            options = ["-std=c++17", "-O3", "-arch=sm_90a", "--expt-relaxed-constexpr", "-cubin"]
            subprocess.run(["nvcc", *options, *places, str(file), "-o", f"{folder}/cubin"], check=True)
            text = subprocess.run([dump, "-sass", f"{folder}/cubin"], capture_output=True, text=True, check=True).stdout
        found += [each.partition("\n")[2] for each in re.split(r"Function : ", text)[1:]]
    return found


def renew(name: str) -> str:
    """Today's checksums for a record, if the machine code is the same. Returns what was done, or why not."""
    where = environment(name)
    measured = where.get("sources", {})
    commit = where.get("commit", "")
    if not measured or not re.fullmatch("[0-9a-f]+", commit):  # it may end in -dirty
        return f"{name} names no commit whose kernels could be compiled: measure again"
    kernels = [path for path in measured if path.endswith(".cu")]
    places = sorted({path if (ROOT / path).exists() else str(Path(path).parent) for path in kernels})
    program = "ladder.py" if any(path.endswith("/ladder.cu") for path in measured) else ""
    today = sources.state(places, program, ROOT)
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        try:
            before = machine_code([Path(folder, path) for path in kernels], Path(folder))
            now = machine_code([ROOT / path for path in today if path.endswith(".cu")], ROOT)
        except subprocess.CalledProcessError:
            return f"{name}: the kernels do not compile here, so their machine code cannot be compared"
    if Counter(before) - Counter(now):
        return f"{name}: the machine code is not that of commit {commit}: measure again"
    host = {path: then for path, then in measured.items() if path.endswith(sources.HOST)}
    note(name, {"sources": host | {path: now for path, now in today.items() if path.endswith(sources.KERNELS)}})
    return f"{name}: the machine code is that of commit {commit}; today's checksums are noted"


def note(name: str, found: dict) -> None:
    """Put these entries into the environment of each run of a record. All else stays as it is written."""
    text, new, end = (RESULTS / f"{name}.json").read_text(), "", 0
    for start in re.finditer(r'"environment":\s*', text):
        where, behind = json.JSONDecoder().raw_decode(text, start.end())
        new += text[end : start.end()] + json.dumps(where | found, separators=(",", ":"), ensure_ascii=False)
        end = behind
    files.write(RESULTS / f"{name}.json", (new + text[end:]).encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in RESULTS.glob("*.json"))
    parser.add_argument("--renew", nargs="+", default=[], choices=names, metavar="NAME", help="records to renew")
    for name in parser.parse_args().renew:
        print(renew(name))
    changed_files.cache_clear()
    for line in older():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
