"""kernel<<<configuration>>>(arguments) becomes a call. The arguments stay where they are, and are evaluated once."""

from .source import CLOSE, Source, quote

# The launch's own code is not watched: its arguments are no loads of the kernel.
UNWATCHED = '__attribute__((no_sanitize("thread", "undefined")))'
NO_KERNEL = ("return", "else", "do")  # may stand before a kernel, and are no part of its name


def translate_launch(source: Source, i: int) -> None:
    """i: the token `<<<`."""
    first, close = begin_of_kernel(source, i), end_of_configuration(source, i)
    opening = close + 3
    end = source.partner.get(opening)
    if end is None:
        raise source.error(i, "a launch whose arguments do not end")
    arguments = source.split(opening + 1, end)
    names = [f"emulator_a{k}" for k in range(len(arguments))]
    parameters = ", ".join(f"auto& {name}" for name in names)
    for k, (start, stop) in enumerate(arguments):
        # {1, 2} has no type of its own, and 0 would no longer be a pointer: each thread evaluates it in the call.
        if source.has(start, "{") or (stop - start == 1 and source.has(start, "0", "NULL", "__null")):
            names[k] = source.part(start, stop)
            source.replace(start, stop, "0")
    text, (file, line) = quote(" ".join(source.part(first, i).split())), source.place(i)
    source.insert_before(first, f"::emulator::launch([&]({parameters}) {UNWATCHED} {{ ")
    middle = f'({", ".join(names)}); }}, {text}, "{file}", {line}, ::emulator::Configuration('
    source.replace(i, i + 1, middle)
    source.replace(close, opening + 1, ")" + (", " if arguments else ""))


def begin_of_kernel(source: Source, i: int) -> int:
    """The first token of the kernel before `<<<`: a name, ns::name<arguments>, object.member[i] or (expression)."""
    while True:
        i = begin_of_operand(source, i - 1)
        if source.has(i - 1, "template"):
            i -= 1
        if not source.has(i - 1, "::", ".", "->"):
            return i
        i -= 1
        is_global = source.has(i, "::") and not (source.is_name(i - 1) or source.has(i - 1, ">"))
        if is_global or source.has(i - 1, *NO_KERNEL):
            return i  # ::name


def begin_of_operand(source: Source, last: int) -> int:
    """The first token of name, name<...>, name[...], name(...) or (...), which ends with token `last`."""
    i = last
    while source.has(i, *CLOSE, ">"):
        i = source.partner.get(i, i) if source.has(i, *CLOSE) else begin_of_angles(source, i)
        is_more = source.is_name(i - 1) or source.has(i - 1, ")", "]", ">")
        if not is_more or source.has(i - 1, *NO_KERNEL):
            return i
        i -= 1
    return i


def begin_of_angles(source: Source, i: int) -> int:
    """The `<` that belongs to a `>`."""
    depth = 0
    while i > 0:
        if source.has(i, *CLOSE):
            i = source.partner.get(i, i)
        depth += source.has(i, ">") - source.has(i, "<")
        if depth == 0:
            break
        i -= 1
    return i


def end_of_configuration(source: Source, i: int) -> int:
    """The first token of the `>>>(` that ends a launch's configuration."""
    found, depth, j = None, 0, i + 1
    while j < len(source.tokens) and not source.has(j, ";", "}"):
        if all(source.has(j + k, ">") for k in range(3)) and source.has(j + 3, "("):
            found = found or j
            if depth == 0:  # no `<` is open, so these three belong together
                return j
        depth += source.has(j, "<") - source.has(j, ">")
        j = source.behind(j)
    if found is None:
        raise source.error(i, "a launch without `>>>(arguments)`")
    return found
