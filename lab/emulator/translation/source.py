"""A preprocessed file as tokens, and edits of it."""

import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

HEADERS = Path(__file__).resolve().parents[1] / "include"
TOKEN = re.compile(
    r"""(?P<marker>^\#\ \d+\ [^\n]*)|(?P<pragma>^\#[^\n]*)
    |(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")|(?P<char>[uUL]?'(?:[^'\\\n]|\\.)+')
    |(?P<name>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    |(?P<launch><<\s*<(?!<))|(?P<operator>::|->|[-+*/%&|^]=|==|!=|<=|>=|&&|\|\||\+\+|--|\S)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
MARKER = re.compile(r'^# (\d+) "((?:[^"\\]|\\.)*)"((?: \d)*)$', re.MULTILINE)  # line, file, flags
OPEN, CLOSE = "([{", ")]}"
WITH_PARENTHESES = {"__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__", "__align__", "alignas"}
WITH_PARENTHESES |= {"__attribute__", "decltype", "noexcept"}


class TranslationError(Exception):
    """A place that the translation cannot read: file, line, and what is wrong."""


@dataclass
class Token:
    kind: str
    text: str
    start: int
    end: int


class Source:
    """The tokens of the user's files within a preprocessed text. Parts are given by their first token and the end."""

    def __init__(self, text: str):
        self.text = text
        self.markers = list(MARKER.finditer(text))
        self.tokens: list[Token] = []
        for start, end in self._user_parts():
            for match in TOKEN.finditer(text, start, end):
                kind = "raw" if match.lastgroup == "delimiter" else str(match.lastgroup)
                if kind not in ("marker", "pragma"):
                    self.tokens.append(Token(kind, match[0], match.start(), match.end()))
        self.partner = self._partners()  # of each bracket
        self.edits: list[tuple[int, int, str]] = []  # start, end, new text
        self.count = 0

    def _user_parts(self) -> list[tuple[int, int]]:
        """The parts of the text that come from the user's files, not from system headers."""
        # The expansion of a system header's macro is marked as of the system, in the user's file.
        users = {marker[2] for marker in self.markers if "3" not in marker[3].split()}
        users = {name for name in users if not name.startswith(("<", str(HEADERS)))}
        parts, start = [], None
        for marker in self.markers:
            if marker[2] not in users and start is not None:
                parts.append((start, marker.start()))
                start = None
            elif marker[2] in users and start is None:
                start = marker.end()
        return parts if start is None else [*parts, (start, len(self.text))]

    def _partners(self) -> dict[int, int]:
        found, stack = {}, []
        for i, token in enumerate(self.tokens):
            if token.kind == "operator" and token.text in OPEN:
                stack.append(i)
            elif token.kind == "operator" and token.text in CLOSE and stack:
                opening = stack.pop()
                found[opening], found[i] = i, opening
        return found

    # ---- Reading.

    def has(self, i: int, *texts: str) -> bool:
        """Whether token i is one of some texts."""
        return 0 <= i < len(self.tokens) and self.tokens[i].text in texts

    def is_name(self, i: int) -> bool:
        return 0 <= i < len(self.tokens) and self.tokens[i].kind == "name"

    def behind(self, i: int) -> int:
        """The next token; after an opening bracket the one behind its partner."""
        return (self.partner.get(i, i) if self.has(i, *OPEN) else i) + 1

    def part(self, first: int, end: int) -> str:
        """The text of a part, without line markers in it."""
        if first >= end:
            return ""
        text = self.text[self.tokens[first].start : self.tokens[end - 1].end]
        return re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)

    def line(self, words: list[int], renamed: dict[int, str] | None = None) -> str:
        """Some tokens as one line: those that touched still do, such as >>."""
        out, end = "", None
        for i in words:
            token = self.tokens[i]
            out += ("" if token.start == end or not out else " ") + (renamed or {}).get(i, token.text)
            end = token.end
        return out

    def place(self, i: int) -> tuple[str, int]:
        """File and line of a token, as the preprocessor has marked them. The file's name is as in a string of C."""
        start = self.tokens[i].start
        last = bisect_right(self.markers, start, key=lambda marker: marker.start()) - 1
        if last < 0:
            return "", 0
        marker = self.markers[last]
        return marker[2], int(marker[1]) + self.text.count("\n", marker.end() + 1, start)

    def error(self, i: int, message: str) -> TranslationError:
        file, line = self.place(i)
        return TranslationError(f"{file}:{line}: error: {message}")

    def split(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts between commas that are in no bracket; none of an empty part."""
        parts, start, i = [], first, first
        while i < end:
            if self.has(i, ","):
                parts.append((start, i))
                start = i + 1
            i = self.behind(i)
        return [*parts, (start, end)] if first < end else []

    def begin_of_declaration(self, i: int) -> int:
        """The first token of the declaration that token i belongs to. `alignas(16)` is part of one, `if (x)` is not."""
        while i > 0 and not self.has(i - 1, ";", "{", "}", ":"):
            if self.has(i - 1, ")"):
                opening = self.partner.get(i - 1, 0)
                if not self.has(opening - 1, *WITH_PARENTHESES):
                    break
                i = opening
            i -= 1
        return i

    def end_of_declaration(self, i: int) -> int:
        """Its `;`."""
        while i < len(self.tokens) and not self.has(i, ";"):
            i = self.behind(i)
        return i

    # ---- Editing.

    def fresh(self, name: str) -> str:
        """A name that is not there yet."""
        self.count += 1
        return f"emulator_{name}_{self.count}"

    def replace(self, first: int, end: int, new: str) -> None:
        """A part becomes a new text; what follows it stays in its line."""
        start, stop = self.tokens[first].start, self.tokens[end - 1].end
        old = self.text[start:stop]
        if MARKER.search(old):
            file, line = self.place(end - 1)
            new += f'\n# {line} "{file}"\n'
        else:
            new += "\n" * (old.count("\n") - new.count("\n"))
        self.edits.append((start, stop, new))

    def insert_before(self, i: int, new: str) -> None:
        self.edits.append((self.tokens[i].start, self.tokens[i].start, new))

    def insert_after(self, i: int, new: str) -> None:
        self.edits.append((self.tokens[i].end, self.tokens[i].end, new))

    def edited(self) -> str:
        """The text with all edits; at one place, insertions come before what replaces a token."""
        out, at = [], 0
        for start, end, new in sorted(self.edits, key=lambda edit: (edit[0], edit[1] > edit[0])):
            if start < at:
                continue  # inside of a part that was replaced
            out += [self.text[at:start], new]
            at = end
        return "".join([*out, self.text[at:]])


def quote(text: str) -> str:
    """A string of C."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
