"""From an address in a library to the line of the source: addr2line reads what the compiler noted."""

import re
import shutil
import subprocess
from bisect import bisect_right
from pathlib import Path

from .build import HERE, CannotBuild, compiler

Place = tuple[str, int]  # file, line


class Lines:
    """The lines of one library that is loaded."""

    def __init__(self, library: Path):
        self.library = library
        self.base = load_address(library)
        self.known: dict[int, list[tuple[str, str, int]]] = {}  # function, file, line: the innermost first
        self.variables: list[tuple[int, str]] | None = None  # their addresses and names, once they are asked for

    def look_up(self, addresses: set[int]) -> None:
        """Ask for all of them at once, as each start of addr2line takes its time."""
        missing = sorted(address for address in addresses if address and address not in self.known)
        if not missing:
            return
        # A call's return address belongs to the next instruction, so one byte before it.
        offsets = "".join(f"{address - 1 - self.base:#x}\n" for address in missing)
        command = [tool("addr2line"), "-a", "-f", "-i", "-C", "-e", str(self.library)]
        text = subprocess.run(command, input=offsets, capture_output=True, text=True).stdout
        found = re.split(r"^0x[0-9a-f]+\n", text, flags=re.MULTILINE)[1:]
        for address, part in zip(missing, found, strict=False):
            lines = part.splitlines()
            self.known[address] = [frame(*pair) for pair in zip(lines[::2], lines[1::2], strict=False)]

    def place(self, address: int) -> Place:
        """The line of the user's code: an access may be inside of a function of the emulator's headers."""
        frames = self.known.get(address, [])
        for _, file, line in frames:
            if line and not file.startswith((str(HERE), "/usr/include", "/usr/lib")):
                return file, line
        return "", 0

    def variable(self, address: int) -> str:
        """The host's variable around an address; "" for another one, such as a static variable of a kernel."""
        if self.variables is None:
            self.variables = symbols(self.library)
        at = bisect_right(self.variables, address - self.base, key=lambda each: each[0]) - 1
        name = self.variables[at][1].replace("(anonymous namespace)::", "") if at >= 0 else ""
        is_other = any(mark in name for mark in "(<") or name.startswith(("emulator", "guard variable", "vtable"))
        return "" if is_other else name

    def kernel(self, address: int) -> str:
        """The function around an address, without its parameters: through_tile<float, 1>."""
        frames = self.known.get(address, [])
        return short_name(frames[-1][0]) if frames else ""


def frame(function: str, place: str) -> tuple[str, str, int]:
    file, _, line = place.partition(" (discriminator")[0].rpartition(":")
    return function, file, int(line) if line.isdigit() else 0


def short_name(function: str) -> str:
    """`void (anonymous namespace)::row<float, 2>(float*)` is row<float, 2>."""
    name = function.replace("(anonymous namespace)::", "")
    depth, out = 0, ""
    for c in name:
        if c == "(" and depth == 0:
            break
        depth += (c in "<(") - (c in ">)")
        out += c
        if c == " " and depth == 0:
            out = ""  # that was the type of the result
    return out or function


def symbols(library: Path) -> list[tuple[int, str]]:
    """The variables of a library, by their addresses in it."""
    text = subprocess.run([tool("nm"), "-C", "-n", str(library)], capture_output=True, text=True).stdout
    found = re.findall(r"^([0-9a-f]+) [bBdDuV] (.+)$", text, flags=re.MULTILINE)
    return [(int(address, 16), name) for address, name in found]


def tool(name: str) -> str:
    """A program of binutils: next to the assembler that g++ uses, or on PATH."""
    path = subprocess.run([compiler(), f"-print-prog-name={name}"], capture_output=True, text=True).stdout.strip()
    if found := shutil.which(path or name):
        return found
    raise CannotBuild(f"{name} is not installed; it comes with binutils, as the linker does")


def load_address(library: Path) -> int:
    """Where the library lies in this process."""
    name = str(library.resolve())
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5] == name:
            return int(parts[0].split("-")[0], 16) - int(parts[2], 16)
    return 0
