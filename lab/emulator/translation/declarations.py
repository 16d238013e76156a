"""Functions and variables: CUDA's words before them go, and the emulator learns of them by their names."""

from .source import OPEN, WITH_PARENTHESES, Source, quote

DROPPED = {"__global__", "__host__", "__grid_constant__"}
OF_DEVICE = ("__device__", "__constant__", "__managed__")
NUMBERED = {"__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__"}
INLINE = {"inline", "__inline__", "constexpr", "__forceinline__"}
OF_MEMORY = {"memcpy": "memory_copy", "memmove": "memory_copy", "memset": "memory_set"}
OF_LINKAGE = DROPPED | INLINE | {"__device__", "static", "extern", '"C"'}


def translate_word(source: Source, i: int, is_at_namespace: bool) -> None:
    """i: a name, of which some are CUDA's."""
    text = source.tokens[i].text
    if text in DROPPED:
        source.replace(i, i + 1, "")
    elif text in NUMBERED and source.has(i + 1, "("):
        translate_numbers(source, i)
    elif text in OF_DEVICE:
        translate_device(source, i, is_at_namespace)
    elif text == "__forceinline__":
        source.replace(i, i + 1, inline(source, i) + " __attribute__((always_inline))")
    elif text == "__noinline__" and not source.has(i - 1, "("):
        source.replace(i, i + 1, "__attribute__((noinline))")
    elif text in OF_MEMORY and source.has(i + 1, "(") and not source.has(i - 1, ".", "->"):
        first = i - 2 if source.has(i - 2, "std") and source.has(i - 1, "::") else i - source.has(i - 1, "::")
        source.replace(first, i + 1, f"::emulator::{OF_MEMORY[text]}")


def inline(source: Source, i: int) -> str:
    """`inline`, unless the declaration of token i has such a word already."""
    end = i
    while end < len(source.tokens) and not source.has(end, "(", ";", "{"):
        end += 1
    others = [j for j in range(source.begin_of_declaration(i), end) if j != i]
    return "" if any(source.has(j, *INLINE) for j in others) else "inline"


def translate_numbers(source: Source, i: int) -> None:
    """__launch_bounds__(threads) of a kernel's definition is checked as its body begins."""
    close = source.partner[i + 1]
    body = close + 1
    while body < len(source.tokens) and not source.has(body, ";", "{"):
        body = source.behind(body)
    if source.has(i, "__launch_bounds__") and source.has(body, "{"):
        most = source.split(i + 2, close)[0]
        source.insert_after(body, f" emulator_launch_bounds({source.part(*most)});")
    source.replace(i, close + 1, "")


def translate_device(source: Source, i: int, is_at_namespace: bool) -> None:
    """A function of the device is inlined, as nvcc does it. Variables are registered."""
    is_of_lambda = source.has(i + 1, "(", "mutable", "->") or source.has(i - 1, "]")
    if is_of_lambda or not is_at_namespace or source.has(i - 1, *OF_DEVICE):
        source.replace(i, i + 1, "")
        return
    first = source.begin_of_declaration(i)
    name, end = variable_of(source, first), source.end_of_declaration(i)
    is_constant = any(source.has(j, "__constant__") for j in range(first, end if name is None else name))
    source.replace(i, i + 1, inline(source, i) if name is None and not is_constant else "")
    is_extern = source.has(first, "extern") and not source.has(first + 1, '"C"')
    if name is None or is_extern:
        return
    for j in [name, *more_variables(source, name, end)]:
        text = source.tokens[j].text
        declared = f"{source.fresh('variable')}({text}, {quote(text)}, {str(is_constant).lower()})"
        source.insert_after(end, f" static ::emulator::Variable {declared};")


def more_variables(source: Source, name: int, end: int) -> list[int]:
    """Of `int a = 1, *b, c[2];` the tokens b and c."""
    found, i = [], name
    while i < end:
        if source.has(i, ","):
            while source.has(i + 1, "*", "const"):
                i += 1
            if source.is_name(i + 1) and source.has(i + 2, ",", "=", "[", "{", ";"):
                found.append(i + 1)
        i = source.behind(i)
    return found


def variable_of(source: Source, i: int) -> int | None:
    """The name of the variable that is declared from token i on; None for a function or a template."""
    found = None
    while i < len(source.tokens):
        if source.has(i, "template", "operator", "("):
            return None
        if source.has(i, ";", "=", "[", "{", ","):
            return found
        if source.has(i, *WITH_PARENTHESES) and source.has(i + 1, "("):
            i = source.behind(i + 1)
        elif source.has(i, "struct", "class", "union", "enum") and source.has(
            body := i + 1 + source.is_name(i + 1), "{"
        ):
            i = source.behind(body)  # a type that is defined here
        elif source.has(i, "<"):
            i = end_of_angles(source, i)
        else:
            found = i if source.is_name(i) else found
            i += 1
    return None


def end_of_angles(source: Source, i: int) -> int:
    """The token behind `<...>`."""
    depth = 0
    while i < len(source.tokens) and not source.has(i, ";", "{", "}"):
        depth += source.has(i, "<") - source.has(i, ">")
        if depth == 0:
            return i + 1
        i = source.behind(i)
    return i


# ---- Launchers and kernels.


def register_functions(source: Source) -> set[int]:
    """Behind the definitions of launchers and kernels, register them. Returns the tokens at namespace level."""
    at_namespace: set[int] = set()
    found: dict = {}
    spaces: list[tuple] = []  # of each its name, its closing brace
    i = start = 0  # start: of the declaration
    while i < len(source.tokens):
        at_namespace.add(i)
        while spaces and i >= spaces[-1][1]:
            spaces.pop()
        if source.has(i, ";", "}"):
            start = i + 1
        elif source.has(i, "{") and (space := namespace_of(source, start, i)) is not None:
            spaces.append((space, source.partner.get(i, len(source.tokens))))
            start = i + 1
        elif source.has(i, *OPEN):
            end = source.partner.get(i, len(source.tokens) - 1)
            if source.has(i, "{"):
                note_function(source, start, i, "::".join(name for name, _ in spaces if name), found)
                is_function = any(source.has(j, "(") for j in range(start, i))
                if is_function and not source.has(end + 1, ";", ","):
                    start = end + 1
            i = end
        i += 1
    for places in found.values():
        if len(places) == 1:  # of several functions with one name none can be named
            source.insert_after(*places[0])
    return at_namespace


def namespace_of(source: Source, start: int, brace: int) -> str | None:
    """Of `namespace name {` the name; "" without one and for `extern "C" {`; None for other braces."""
    if source.has(start, "extern") and brace == start + 2:
        return ""
    names = [source.tokens[j].text for j in range(start, brace)]
    if "namespace" not in names:
        return None
    return "".join(names[names.index("namespace") + 1 :])


def note_function(source: Source, start: int, brace: int, space: str, found: dict) -> None:
    """If a launcher or kernel is defined, note where its body ends and the text that registers it."""
    words = {source.tokens[j].text for j in range(start, brace)}
    if words & {"template", "operator"} or source.has(start, "class", "struct", "union", "enum"):
        return
    skipped, i = set(), start
    while i < brace and not source.has(i, "("):
        behind = source.behind(i + 1) if source.has(i, *WITH_PARENTHESES) and source.has(i + 1, "(") else i + 1
        skipped |= set(range(i, behind)) if behind > i + 1 else set()
        i = behind
    name = i - 1
    if i == brace or not source.is_name(name) or source.has(name - 1, "::"):
        return
    text, is_kernel = source.tokens[name].text, "__global__" in words
    qualified = f"{space}::{text}" if space else text
    places = found.setdefault(qualified, [])
    before = {source.tokens[j].text for j in range(start, name)}  # a parameter may be an array: char* argv[]
    is_hidden = before & {"static", "__device__", "[", *INLINE} or "->" in words
    kept = [j for j in range(start, name) if j not in skipped and source.tokens[j].text not in OF_LINKAGE]
    result = source.line(kept)
    parameters = ", ".join(parameter(source, *part) for part in source.split(i + 1, source.partner[i]))
    if (is_hidden and not is_kernel) or not result or result == "auto" or "..." in parameters:
        places.append((name, ""))
        return
    kind, cast = "Kernel" if is_kernel else "Launcher", f"static_cast<{result} (*)({parameters})>(&{text})"
    registered = f" static ::emulator::{kind} {source.fresh('function')}({quote(qualified)}, {cast});"
    end = source.partner.get(brace, brace)
    while source.has(end + 1, "catch") and source.has(end + 2, "("):  # of a function-try-block
        handler = source.behind(end + 2)
        end = source.partner.get(handler, handler)
    places.append((end, registered))


def parameter(source: Source, first: int, end: int) -> str:
    """A parameter without its default value."""
    i = first
    while i < end and not source.has(i, "="):
        i = source.behind(i)
    return source.line([j for j in range(first, min(i, end)) if source.tokens[j].text not in DROPPED])
