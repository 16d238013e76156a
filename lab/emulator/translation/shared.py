"""Shared memory: a static array of the library, as one block runs at a time, and a reference to it by its name."""

from .source import CLOSE, OPEN, Source

PAD = 128  # bytes around each array: an index that is somewhat too large meets them, not another array


def translate_shared(source: Source, i: int) -> None:
    """i: the token `__shared__`."""
    first, end = source.begin_of_declaration(i), source.end_of_declaration(i)
    words = [j for j in range(first, end) if not source.has(j, "__shared__", "static", "extern")]
    is_dynamic = any(source.has(j, "extern") for j in range(first, end))
    source.replace(first, end + 1, dynamic_array(source, words) if is_dynamic else static_arrays(source, words))


def dynamic_array(source: Source, words: list[int]) -> str:
    """A type for what is declared, and the emulator's memory as that."""
    name, kind = declared_name(source, words), source.fresh("type")
    array = source.tokens[name].text
    text = source.line(words, {name: kind})
    return f"typedef {text}; static {kind}& {array} = reinterpret_cast<{kind}&>(emulator_dynamic_shared);"


def static_arrays(source: Source, words: list[int]) -> str:
    """A struct with the arrays and paddings between them, its memory, and a name for each array."""
    kind, declarators = declarators_of(source, words)
    struct = source.fresh("shared")
    members = f"alignas({PAD}) char emulator_pad[{PAD}];"
    for k, declarator in enumerate(declarators):
        members += f" {kind} {source.line(declarator)}; char emulator_pad_{k}[{PAD}];"
    out = f"struct {struct} {{ {members} }}; alignas({PAD}) static char {struct}_memory[sizeof({struct})];"
    for declarator in declarators:
        array = source.tokens[declared_name(source, declarator)].text
        out += f" static auto& {array} = reinterpret_cast<{struct}&>({struct}_memory).{array};"
        out += f' ::emulator::declare_shared({struct}_memory, {array}, "{array}");'
    return out


def declarators_of(source: Source, words: list[int]) -> tuple[str, list[list[int]]]:
    """Of `float a[4], *b` the type and the rest: float; a[4] and *b."""
    parts: list[list[int]] = [[]]
    for i, depth in zip(words, depths(source, words), strict=True):
        if depth == 0 and source.has(i, ","):
            parts.append([])
        else:
            parts[-1].append(i)
    begin = parts[0].index(declared_name(source, parts[0]))
    while begin > 0 and source.has(parts[0][begin - 1], "*", "&", "("):
        begin -= 1
    return source.line(parts[0][:begin]), [parts[0][begin:], *parts[1:]]


def declared_name(source: Source, words: list[int]) -> int:
    """Of `float a[32][33]` the token a."""
    found = None
    for i, depth in zip(words, depths(source, words), strict=True):
        if depth == 0 and source.has(i, "["):
            break
        if depth == 0 and source.is_name(i):
            found = i
        elif depth == 1 and source.has(i, "*") and source.is_name(i + 1):
            return i + 1  # float (*rows)[32]
    if found is None:
        raise source.error(words[0], "a declaration of shared memory that has no name")
    return found


def depths(source: Source, words: list[int]) -> list[int]:
    """Of each token in how many brackets it is, or `<...>` of templates. Within brackets `>` is an operator."""
    found, brackets, angles = [], 0, 0
    for i in words:
        brackets -= source.has(i, *CLOSE)
        if brackets == 0:
            angles -= source.has(i, ">")
        found.append(brackets + angles)
        if brackets == 0:
            angles += source.has(i, "<")
        brackets += source.has(i, *OPEN)
    return found
