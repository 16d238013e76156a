"""CUDA C++ to C++: what a host compiler cannot read becomes calls of the emulator.

It reads what the preprocessor leaves, so macros and headers are already in place, and changes only the user's files:

    kernel<<<grid, block>>>(x, y)      ->  emulator::launch([&](auto& a, auto& b) { kernel(a, b); }, {grid, block}, x, y)
    __shared__ float tile[32][33];     ->  a static array between two paddings, which the emulator knows
    extern __shared__ float tile[];    ->  a reference to memory of the emulator
    asm("mma.sync ..." : "+f"(x))      ->  emulator::ptx("mma.sync ...", emulator::operand("+f", x))
    __global__, __device__ ...         ->  nothing; variables and functions are registered by their names

Replacements keep their line breaks, so the compiler's messages and the debugger's lines are those of the source.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<marker>^\#\ \d+\ [^\n]*)|(?P<pragma>^\#[^\n]*)
    |(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")|(?P<char>[uUL]?'(?:[^'\\\n]|\\.)+')
    |(?P<name>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    |(?P<open><<\s*<(?!<))|(?P<operator>::|->|[-+*/%&|^]=|==|!=|<=|>=|&&|\|\||\+\+|--|\S)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
MARKER = re.compile(r'^# (\d+) "((?:[^"\\]|\\.)*)"((?: \d)*)$', re.MULTILINE)
HEADERS = Path(__file__).resolve().parent / "include"
PAIRS = {"(": ")", "[": "]", "{": "}"}
DROPPED = {"__global__", "__host__", "__grid_constant__", "__managed__"}
WITH_NUMBERS = {"__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__"}
INLINE = {"inline", "__inline__", "constexpr", "__forceinline__"}
WITH_PARENTHESES = WITH_NUMBERS | {"__attribute__", "__align__", "alignas", "decltype", "noexcept", "__declspec"}
UNWATCHED = '__attribute__((no_sanitize("thread", "undefined")))'  # a launch's arguments are no loads of the kernel
PAD = 128  # bytes around an array in shared memory


class TranslationError(Exception):
    """A place that the translation cannot read: file, line, and what is wrong."""


@dataclass
class Token:
    kind: str
    text: str
    start: int
    end: int


def user_parts(text: str) -> list[tuple[int, int]]:
    """The parts of a preprocessed text that come from the user's files, not from system headers."""
    # The expansion of a system header's macro is marked as of the system, in the user's file.
    users = {marker[2] for marker in MARKER.finditer(text) if "3" not in marker[3].split()}
    users = {name for name in users if not name.startswith(("<", str(HEADERS)))}
    parts, start = [], None
    for marker in MARKER.finditer(text):
        is_system = marker[2] not in users
        if is_system and start is not None:
            parts.append((start, marker.start()))
            start = None
        elif not is_system and start is None:
            start = marker.end()
    return parts + ([(start, len(text))] if start is not None else [])


class Translation:
    """One file. tokens: those of the user's files; edits: (start, end, new text)."""

    def __init__(self, text: str):
        self.text = text
        self.tokens: list[Token] = []
        for start, end in user_parts(text):
            for match in TOKEN.finditer(text, start, end):
                kind = match.lastgroup if match.lastgroup != "delimiter" else "raw"
                if kind not in ("marker", "pragma"):
                    self.tokens.append(Token(kind, match[0], match.start(), match.end()))
        self.markers = list(MARKER.finditer(text))
        self.edits: list[tuple[int, int, str]] = []
        self.count = 0  # of names that are made up
        self.match = self._pairs()

    def run(self) -> str:
        self._namespaces()
        for i, token in enumerate(self.tokens):
            if token.kind == "open":
                self._launch(i)
            elif token.kind != "name":
                continue
            elif token.text == "__shared__":
                self._shared(i)
            elif token.text in ("asm", "__asm__", "__asm"):
                self._asm(i)
            elif token.text in DROPPED:
                self._replace(i, i + 1, "")
            elif token.text in WITH_NUMBERS and self._is(i + 1, "("):
                self._numbers(i)
            elif token.text in ("__device__", "__constant__"):
                self._device(i)
            elif token.text == "__forceinline__":
                self._replace(i, i + 1, self._inline(i) + " __attribute__((always_inline))")
            elif token.text == "__noinline__" and not self._is(i - 1, "("):
                self._replace(i, i + 1, "__attribute__((noinline))")
        return self._apply()

    # ---- Tokens.

    def _is(self, i: int, *texts: str) -> bool:
        return 0 <= i < len(self.tokens) and self.tokens[i].text in texts

    def _pairs(self) -> dict[int, int]:
        """Of each bracket, its partner."""
        match, stack = {}, []
        for i, token in enumerate(self.tokens):
            if token.kind != "operator":
                continue
            if token.text in PAIRS:
                stack.append(i)
            elif token.text in PAIRS.values() and stack:
                opening = stack.pop()
                match[opening], match[i] = i, opening
        return match

    def _source(self, first: int, end: int) -> str:
        """The text of tokens first to end - 1, without line markers between them."""
        if first >= end:
            return ""
        text = self.text[self.tokens[first].start : self.tokens[end - 1].end]
        return re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)

    def _line_of(self, i: int) -> tuple[str, int]:
        """File and line of a token, as the preprocessor has marked them."""
        start = self.tokens[i].start
        last = bisect_right(self.markers, start, key=lambda marker: marker.start()) - 1
        if last < 0:
            return "", 0
        marker = self.markers[last]
        return marker[2], int(marker[1]) + self.text.count("\n", marker.end() + 1, start)

    def _error(self, i: int, message: str) -> TranslationError:
        file, line = self._line_of(i)
        return TranslationError(f"{file}:{line}: error: {message}")

    def _split(self, first: int, end: int) -> list[tuple[int, int]]:
        """Parts between commas that are in no bracket."""
        parts, start, i = [], first, first
        while i < end:
            if self._is(i, *PAIRS):
                i = self.match.get(i, i)
            elif self._is(i, ","):
                parts.append((start, i))
                start = i + 1
            i += 1
        return [*parts, (start, end)] if first < end else []

    def _skip_angles(self, i: int) -> int:
        """The token after `<...>` that begins at i, or i if it does not end before a `;`."""
        depth, j = 0, i
        while j < len(self.tokens) and not self._is(j, ";", "{", "}"):
            if self._is(j, "(", "["):
                j = self.match.get(j, j)
            depth += self._is(j, "<") - self._is(j, ">")
            if depth == 0:
                return j + 1
            j += 1
        return i

    # ---- Edits.

    def _replace(self, first: int, end: int, new: str) -> None:
        """Tokens first to end - 1 become new; what follows them stays in its line."""
        start, stop = self.tokens[first].start, self.tokens[end - 1].end
        old = self.text[start:stop]
        if MARKER.search(old):
            file, line = self._line_of(end - 1)
            new += f'\n# {line} "{file}"\n'
        else:
            new += "\n" * (old.count("\n") - new.count("\n"))
        self.edits.append((start, stop, new))

    def _insert(self, i: int, new: str, after: bool = False) -> None:
        at = self.tokens[i].end if after else self.tokens[i].start
        self.edits.append((at, at, new))

    def _apply(self) -> str:
        """The edits, first to last. Of two at one place, the one that was made first comes first."""
        out, at = [], 0
        for start, end, new in sorted(self.edits, key=lambda edit: (edit[0], edit[1] > edit[0])):
            if start < at:
                continue  # inside of one that was replaced
            out += [self.text[at:start], new]
            at = end
        return "".join([*out, self.text[at:]])

    # ---- Launches.

    def _launch(self, i: int) -> None:
        """kernel<<<configuration>>>(arguments)"""
        first = self._begin_of_expression(i)
        close, parenthesis = self._end_of_configuration(i)
        end = self.match.get(parenthesis)
        if end is None:
            raise self._error(i, "a launch whose arguments do not end")
        file, line = self._line_of(i)
        where = f'{quote(" ".join(self._source(first, i).split()))}, {quote_path(file)}, {line}, ::emulator::Configuration('
        arguments = self._split(parenthesis + 1, end)
        names = [f"emulator_a{k}" for k in range(len(arguments))]
        parameters = ", ".join(f"auto& {name}" for name in names)
        for k, part in enumerate(arguments):
            if self._has_no_type(*part):  # each thread evaluates it, in the call
                names[k] = self._source(*part)
                self._replace(*part, "0")
        self._insert(first, f"::emulator::launch([&]({parameters}) {UNWATCHED} {{ ")
        self._replace(i, i + 1, f"({', '.join(names)}); }}, {where}")
        self._replace(close, parenthesis + 1, ")" + (", " if arguments else ""))

    def _has_no_type(self, first: int, end: int) -> bool:
        """{1, 2} has none, and 0 would lose that it may be a null pointer."""
        return self._is(first, "{") or (end - first == 1 and self._is(first, "0", "__null", "NULL"))

    def _begin_of_expression(self, i: int) -> int:
        """The first token of the function before `<<<`: a name, ns::name<arguments>, object.member, (expression)."""
        j = i - 1
        while True:
            if self._is(j, ")", "]"):
                j = self.match.get(j, j)
                if self._is(j - 1, ")", "]", ">") or (j > 0 and self.tokens[j - 1].kind == "name"):
                    if not self._is(j - 1, "return", "else", "do"):
                        j -= 1
                        continue
            elif self._is(j, ">"):
                depth = 0
                while j >= 0:
                    if self._is(j, ")", "]", "}"):
                        j = self.match.get(j, j)
                    depth += self._is(j, ">") - self._is(j, "<")
                    if depth == 0:
                        break
                    j -= 1
                j -= 1  # the template's name
            if self._is(j - 1, "::", ".", "->"):
                j -= 1
                is_more = j > 0 and (self.tokens[j - 1].kind == "name" or self._is(j - 1, ">", ")", "]"))
                if self._is(j, "::") and (not is_more or self._is(j - 1, "return", "else", "do")):
                    return j  # ::name
                j -= 1
                continue
            if self._is(j - 1, "template"):
                j -= 1
                continue
            return j

    def _end_of_configuration(self, i: int) -> tuple[int, int]:
        """The first token of the `>>>` that ends a launch's configuration, and its `(`."""
        found, depth, j = None, 0, i + 1
        while j < len(self.tokens) and not self._is(j, ";", "}"):
            if self._is(j, *PAIRS):
                j = self.match.get(j, j)
            elif all(self._is(j + k, ">") for k in range(3)) and self._is(j + 3, "("):
                found = found or j
                if depth == 0:  # no `<` is open, so these three belong together
                    return j, j + 3
            depth += self._is(j, "<") - self._is(j, ">")
            j += 1
        if found is None:
            raise self._error(i, "a launch without `>>>(arguments)`")
        return found, found + 3

    # ---- Shared memory.

    def _begin_of_declaration(self, i: int) -> int:
        """The first token of the declaration that token i belongs to. `alignas(16)` is part of one, `if (x)` is not."""
        while i > 0 and not self._is(i - 1, ";", "{", "}", ":"):
            if self._is(i - 1, ")"):
                opening = self.match.get(i - 1, 0)
                if not self._is(opening - 1, *WITH_PARENTHESES):
                    break
                i = opening
            i -= 1
        return i

    def _end_of_declaration(self, i: int) -> int:
        while i < len(self.tokens) and not self._is(i, ";"):
            i = self.match.get(i, i) + 1 if self._is(i, *PAIRS) else i + 1
        return i

    def _shared(self, i: int) -> None:
        first, end = self._begin_of_declaration(i), self._end_of_declaration(i)
        words = [j for j in range(first, end) if not self._is(j, "__shared__", "static", "extern")]
        if any(self._is(j, "extern") for j in range(first, end)):
            self._replace(first, end + 1, self._dynamic_array(words))
            return
        self._replace(first, end + 1, self._static_arrays(words))

    def _dynamic_array(self, words: list[int]) -> str:
        """A type for what is declared, and the emulator's memory as that."""
        name = self._declared_name(words)
        self.count += 1
        kind = f"emulator_type_{self.count}"
        text = " ".join(kind if j == name else self.tokens[j].text for j in words)
        array = self.tokens[name].text
        return f"typedef {text}; static {kind}& {array} = reinterpret_cast<{kind}&>(emulator_dynamic_shared);"

    def _static_arrays(self, words: list[int]) -> str:
        """A struct with a padding around each array, its memory, and a name for each array in it."""
        parts: list[list[int]] = [[]]
        depth = 0
        for j in words:
            depth += self._is(j, *PAIRS, "<") - self._is(j, *PAIRS.values(), ">")
            if depth == 0 and self._is(j, ","):
                parts.append([])
            else:
                parts[-1].append(j)
        names = [self._declared_name(part) for part in parts]
        begin = parts[0].index(names[0])
        while begin > 0 and self._is(parts[0][begin - 1], "*", "&"):
            begin -= 1
        kind = " ".join(self.tokens[j].text for j in parts[0][:begin])
        parts[0] = parts[0][begin:]
        self.count += 1
        name = f"emulator_shared_{self.count}"
        members = f"alignas({PAD}) char emulator_pad[{PAD}];"
        for k, part in enumerate(parts):
            text = " ".join(self.tokens[j].text for j in part)
            members += f" {kind} {text}; char emulator_pad_{k}[{PAD}];"
        out = f"struct {name} {{ {members} }}; alignas({PAD}) static char {name}_memory[sizeof({name})];"
        for j in names:
            array = self.tokens[j].text
            out += f" static auto& {array} = reinterpret_cast<{name}&>({name}_memory).{array};"
            out += f' ::emulator::declare_shared({name}_memory, {array}, "{array}");'
        return out

    def _declared_name(self, part: list[int]) -> int:
        """Of `float a[32][33]` the token a."""
        depth, found = 0, None
        for j in part:
            if depth == 0 and self._is(j, "["):
                break
            depth += self._is(j, *PAIRS, "<") - self._is(j, *PAIRS.values(), ">")
            if depth == 0 and self.tokens[j].kind == "name":
                found = j
        if found is None:
            raise self._error(part[0] if part else 0, "a declaration of shared memory that has no name")
        return found

    # ---- Inline PTX.

    def _asm(self, i: int) -> None:
        j = i + 1
        while self._is(j, "volatile", "__volatile__", "goto", "inline"):
            j += 1
        if not self._is(j, "("):
            return
        end = self.match[j]
        colons, k = [], j + 1
        while k < end:
            if self._is(k, "(", "[", "{"):
                k = self.match[k]
            elif self._is(k, ":", "::"):
                colons += [k] * (2 if self._is(k, "::") else 1)
            k += 1
        text_end = colons[0] if colons else end
        operands_end = colons[2] if len(colons) > 2 else end
        out = f"::emulator::ptx({self._source(j + 1, text_end) or quote('')}"
        for n in range(min(len(colons), 2)):
            begin = colons[n] + 1
            stop = min(colons[n + 1] if len(colons) > n + 1 else end, operands_end)
            for first, last in self._split(begin, stop):
                out += ", " + self._operand(first, last)
        self._replace(i, end + 1, out + ")")

    def _operand(self, first: int, end: int) -> str:
        """[name] "=r"(x)"""
        name = ""
        if self._is(first, "["):
            name = f', "{self.tokens[first + 1].text}"'
            first = self.match[first] + 1
        opening = self.match[end - 1]
        return f"::emulator::operand({self._source(first, opening)}, {self._source(opening + 1, end - 1)}{name})"

    # ---- Functions and variables of the device.

    def _inline(self, i: int) -> str:
        """`inline`, unless the declaration of token i has such a word already."""
        j = i
        while j < len(self.tokens) and not self._is(j, "(", ";", "{"):
            j += 1
        others = [k for k in range(self._begin_of_declaration(i), j) if k != i]
        return "" if any(self._is(k, *INLINE) for k in others) else "inline"

    def _numbers(self, i: int) -> None:
        """__launch_bounds__(threads) of a kernel's definition is checked as its body begins."""
        close = self.match[i + 1]
        body = close
        while body < len(self.tokens) and not self._is(body, ";", "{"):
            body = self.match[body] + 1 if self._is(body, "(", "[") else body + 1
        if self._is(i, "__launch_bounds__") and self._is(body, "{"):
            first, end = self._split(i + 2, close)[0]
            self._insert(body, f" emulator_launch_bounds({self._source(first, end)});", after=True)
        self._replace(i, close + 1, "")

    def _device(self, i: int) -> None:
        """A function of the device is inlined, as nvcc does it. A variable is registered."""
        is_constant = self.tokens[i].text == "__constant__"
        is_lambda = self._is(i + 1, "(", "mutable", "->") or self._is(i - 1, "]")
        if is_lambda or i not in self.at_namespace or self._is(i - 1, "__device__", "__constant__"):
            self._replace(i, i + 1, "")
            return
        name = self._variable(i)
        self._replace(i, i + 1, "" if is_constant or name is not None else self._inline(i))
        if name is None or self._is_extern(i):
            return
        self.count += 1
        text = self.tokens[name].text
        self._insert(
            self._end_of_declaration(i),
            f" static ::emulator::Variable emulator_variable_{self.count}({text}, {quote(text)}, "
            f"{str(is_constant).lower()});",
            after=True,
        )

    def _is_extern(self, i: int) -> bool:
        first = self._begin_of_declaration(i)
        return any(self._is(j, "extern") for j in range(first, i + 3)) and not self._is(first + 1, '"C"')

    def _variable(self, i: int) -> int | None:
        """The name of the variable that a declaration with token i declares; None if it is a function, or a template."""
        j, found = self._begin_of_declaration(i), None
        while j < len(self.tokens):
            if self._is(j, *WITH_PARENTHESES) and self._is(j + 1, "("):
                j = self.match[j + 1] + 1
                continue
            if self._is(j, "template", "operator", "("):
                return None
            if self._is(j, ";", "=", "[", "{", ","):
                return found
            if self._is(j, "<"):
                j = self._skip_angles(j)
                continue
            if self.tokens[j].kind == "name":
                found = j
            j += 1
        return None

    # ---- What stands at namespace level.

    def _namespaces(self) -> None:
        """Walk over the declarations at namespace level: register launchers and kernels behind their definitions."""
        self.at_namespace: set[int] = set()
        self.defined: dict[str, int] = {}
        found: list[tuple[int, tuple[str, str]]] = []
        i, start = 0, 0
        while i < len(self.tokens):
            self.at_namespace.add(i)
            if self._is(i, ";", "}"):
                start = i + 1
            elif self._is(i, "(", "["):
                i = self.match.get(i, i)
            elif self._is(i, "{"):
                if self._is_open(start, i):
                    start = i + 1
                else:
                    end = self.match.get(i, len(self.tokens) - 1)
                    if (export := self._export(start, i)) is not None:
                        found.append((end, export))
                    is_body = not self._is(end + 1, ";", ",") and self._has_parameters(start, i)
                    i = end
                    if is_body:
                        start = i + 1
            i += 1
        for end, (name, text) in found:
            if self.defined[name] == 1:
                self._insert(end, text, after=True)

    def _is_open(self, start: int, brace: int) -> bool:
        """namespace name {, extern "C" {"""
        words = [self.tokens[j].text for j in range(start, brace)]
        return "namespace" in words or (words[:1] == ["extern"] and len(words) == 2)

    def _has_parameters(self, start: int, brace: int) -> bool:
        return any(self._is(j, "(") for j in range(start, brace))

    def _export(self, start: int, brace: int) -> tuple[str, str] | None:
        """The name of the function that is defined here, and the text that registers it; None for others."""
        words = {self.tokens[j].text for j in range(start, brace)}
        if words & {"template", "operator"} or self._is(start, "class", "struct", "union", "enum"):
            return None
        is_kernel = "__global__" in words
        skipped: set[int] = set()
        j, name = start, None
        while j < brace:
            if self._is(j, *WITH_PARENTHESES) and self._is(j + 1, "("):
                skipped |= set(range(j, self.match[j + 1] + 1))
                j = self.match[j + 1] + 1
            elif self._is(j, "("):
                name = j - 1
                break
            else:
                j += 1
        if name is None or self.tokens[name].kind != "name" or self._is(name - 1, "::"):
            return None
        text = self.tokens[name].text
        self.defined[text] = self.defined.get(text, 0) + 1
        is_hidden = words & {"static", "inline", "constexpr", "["} or "__device__" in words - {"__host__"}
        if not is_kernel and is_hidden:
            return None
        dropped = DROPPED | {"static", "inline", "extern", '"C"', "__device__", "__forceinline__", "constexpr"}
        kept = [k for k in range(start, name) if k not in skipped and self.tokens[k].text not in dropped]
        result = " ".join(self.tokens[k].text for k in kept)
        parameters = ", ".join(self._parameter(*part) for part in self._split(name + 2, self.match[name + 1]))
        if not result or "..." in parameters or result == "auto" or "->" in words:
            return None
        self.count += 1
        kind = "Kernel" if is_kernel else "Launcher"
        cast = f"static_cast<{result} (*)({parameters})>(&{text})"
        return text, f" static ::emulator::{kind} emulator_export_{self.count}({quote(text)}, {cast});"

    def _parameter(self, first: int, end: int) -> str:
        """A parameter without its default value."""
        j = first
        while j < end and not self._is(j, "="):
            j = self.match[j] + 1 if self._is(j, *PAIRS) else j + 1
        return " ".join(self.tokens[k].text for k in range(first, j) if self.tokens[k].text not in DROPPED)


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def quote_path(path: str) -> str:
    return f'"{path}"'  # the preprocessor has escaped it


def translate(preprocessed: str) -> str:
    """The C++ for a file of CUDA C++ that the preprocessor has read. TranslationError names a place it cannot read."""
    return Translation(preprocessed).run()
