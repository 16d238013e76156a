"""Inline PTX: asm("text" : "=r"(x) : "r"(y) : "memory") becomes a call of the emulator's interpreter."""

from .source import Source, quote


def translate_asm(source: Source, i: int) -> None:
    """i: the token `asm`."""
    opening = i + 1
    while source.has(opening, "volatile", "__volatile__", "goto", "inline"):
        opening += 1
    if not source.has(opening, "("):
        return
    end = source.partner[opening]
    colons, j = [], opening + 1
    while j < end:
        colons += [j] * (source.has(j, ":") + 2 * source.has(j, "::"))
        j = source.behind(j)
    text, outputs, inputs, *_ = parts_between(colons, opening + 1, end)
    operands = [operand(source, *part) for part in source.split(*outputs) + source.split(*inputs)]
    arguments = [source.part(*text) or quote(""), *operands]
    source.replace(i, end + 1, f"::emulator::ptx({', '.join(arguments)})")


def parts_between(colons: list[int], first: int, end: int) -> list[tuple[int, int]]:
    """Text, outputs, inputs, what is clobbered: empty where there are fewer colons. `::` is two colons."""
    starts, ends = [first, *(colon + 1 for colon in colons)], [*colons, end]
    parts = [(start, max(start, stop)) for start, stop in zip(starts, ends, strict=True)]
    return parts + [(end, end)] * (3 - len(parts))


def operand(source: Source, first: int, end: int) -> str:
    """[name] "=r"(x)"""
    name = ""
    if source.has(first, "["):
        name = f', "{source.tokens[first + 1].text}"'
        first = source.partner[first] + 1
    opening = source.partner[end - 1]
    return f"::emulator::operand({source.part(first, opening)}, {source.part(opening + 1, end - 1)}{name})"
