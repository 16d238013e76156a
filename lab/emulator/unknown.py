"""CUDA's functions, types and headers that the emulator does not have: found in the compiler's words."""

import re
from collections.abc import Iterator
from pathlib import Path

MOST = 8  # names in a message
ERROR = re.compile(r"^(.*?):(\d+):\d+: (?:fatal )?error: (.*)$", re.MULTILINE)
QUOTED = r"[\u2018']([^\u2019']+)[\u2019']"
MESSAGES = [
    re.compile(rf"{QUOTED} (?:was not declared|has not been declared|does not name a type|is not a member)"),
    re.compile(rf"{QUOTED} in namespace {QUOTED} does not name a"),
    re.compile(r"([\w./]+): No such file or directory"),
]
MEMBER = re.compile(rf"(?:has no member named|is not a member of) {QUOTED}")
# Names that begin as CUDA's do; the folders and the names of its headers.
NAME = re.compile(r"(?:::)?(?:cuda[A-Z_:]|cu[A-Z]|__\w|tex[123]D|surf[123]D|atomic\w|cooperative_groups|thrust|cub)")
NAME_OF_LIBRARY = re.compile(r"(?:::)?(?:curand|cublas|cufft|cusparse|cusolver|cudnn|nccl|nvcuda|nvtx|wmma)")
FOLDER = r"(?:cub|thrust|cuda|nv|nvtx3|cooperative_groups|cutlass|cute)/"
HEADER = re.compile(rf"{FOLDER}|(?:cuda|curand|cublas|cufft|cusparse|cusolver|cudnn|mma|nvToolsExt|nccl)\w*\.h")
OWNERS = re.compile(r"(?:struct |class )?(?:cooperative_groups|cuda|thrust|cub|nvcuda)")


def unknown_names(words: str) -> Iterator[tuple[str, str]]:
    """Each error's name, "" if it is not CUDA's, and its place."""
    for file, line, message in ERROR.findall(words):
        found = next((match for pattern in MESSAGES if (match := pattern.match(message))), None)
        name = found[1] if found else ""
        owner = MEMBER.search(message)
        is_of_cuda = any(pattern.match(name) for pattern in (NAME, NAME_OF_LIBRARY, HEADER))
        is_member = owner is not None and OWNERS.match(owner[1])
        yield (name if is_of_cuda or is_member else ""), f"{Path(file).name}:{line}"


def explain(words: str) -> str:
    """One line for the names that the emulator does not know, or "" if the first error is another one."""
    places: dict[str, str] = {}
    for name, place in unknown_names(words):
        if name:
            places.setdefault(name, place)
        elif not places:
            return ""
    if not places:
        return ""
    named = ", ".join([f"{name} ({place})" for name, place in places.items()][:MOST])
    more = f" and {len(places) - MOST} more" if len(places) > MOST else ""
    return f"the emulator does not know {named}{more}: run that on a GPU, or write it with what the emulator has"
