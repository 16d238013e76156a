"""CUDA C++ to C++: what a host compiler cannot read becomes calls of the emulator.

It reads what the preprocessor leaves, so macros and headers are already in place, and changes only the user's files:

    kernel<<<grid, block>>>(x, y)    ->  emulator::launch([&](auto& a, auto& b) { kernel(a, b); }, {grid, block}, x, y)
    __shared__ float tile[32][33];   ->  a static array between two paddings, which the emulator knows
    extern __shared__ float tile[];  ->  a reference to memory of the emulator
    asm("mma.sync ..." : "+f"(x))    ->  emulator::ptx("mma.sync ...", emulator::operand("+f", x))
    __global__, __device__ ...       ->  nothing; variables and functions are registered by their names

Replacements keep their line breaks, so the compiler's messages and the debugger's lines are those of the source.
"""

from . import declarations, launches, ptx, shared
from .source import HEADERS, MARKER, Source, TranslationError

__all__ = ["HEADERS", "MARKER", "TranslationError", "translate"]


def translate(preprocessed: str) -> str:
    """The C++ for a file of CUDA C++ that the preprocessor has read. TranslationError names a place it cannot read."""
    source = Source(preprocessed)
    at_namespace = declarations.register_functions(source)
    for i, token in enumerate(source.tokens):
        if token.kind == "launch":
            launches.translate_launch(source, i)
        elif token.text == "__shared__":
            shared.translate_shared(source, i)
        elif token.text in ("asm", "__asm__", "__asm"):
            ptx.translate_asm(source, i)
        elif token.kind == "name":
            declarations.translate_word(source, i, i in at_namespace)
    return source.edited()
