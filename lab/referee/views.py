"""The same shape elsewhere in memory: a tensor whose strides, start or neighbours are unusual."""

import ctypes
import math
import mmap

import torch
from torch import Tensor


def gap(x: Tensor) -> float | bool:
    """A value for the memory around a view. It shows in a result that was computed from it."""
    return math.nan if x.is_floating_point() or x.is_complex() else (x.dtype is torch.bool) or 1


def _every_other(x: Tensor) -> Tensor:
    wide = x.new_full((*x.shape, 2), gap(x))
    wide[..., 0] = x
    return wide[..., 0]


def not_aligned(x: Tensor) -> Tensor:
    longer = x.new_full((x.numel() + 2,), gap(x))
    longer[1:-1] = x.flatten()
    return longer[1:-1].view(x.shape)


def _long_rows(x: Tensor) -> Tensor:
    wide = x.new_full((*x.shape[:-1], x.shape[-1] + 4), gap(x))
    wide[..., 3:-1] = x
    return wide[..., 3:-1]


def _reversed_dimensions(x: Tensor) -> Tensor:
    dims = [*range(x.dim())][::-1]
    return x.permute(dims).contiguous().permute(dims)


def _columns(x: Tensor) -> Tensor:
    return x.movedim(-1, 0).contiguous().movedim(0, -1)


def _channels_last(x: Tensor) -> Tensor | None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else None


def _expanded(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape)


def _expanded_columns(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape)


def _overlapping(x: Tensor) -> Tensor:
    return x.flatten().clone().as_strided(x.shape, [1] * x.dim())


def _negative(x: Tensor) -> Tensor | None:
    if not (x.is_floating_point() and x.dtype in (torch.float32, torch.float64)):
        return None
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def _conjugate(x: Tensor) -> Tensor | None:
    return x.conj().resolve_conj().conj() if x.is_complex() else None


def _far(x: Tensor) -> Tensor | None:
    """Rows that lie more than 2^31 elements apart; the memory between them is never touched."""
    if x.shape[0] < 2 or x.element_size() > 4 or x.requires_grad:
        return None
    stride = 2**31 // (x.shape[0] - 1) + 1
    needed = ((x.shape[0] - 1) * stride + x[0].numel()) * x.element_size()
    if x.is_cuda and torch.cuda.mem_get_info(x.device)[0] < 2 * needed:
        return None
    torch.use_deterministic_algorithms(False)  # or torch would fill the memory
    try:
        memory = x.new_empty(needed // x.element_size())
    except RuntimeError:
        return None
    inner = x[0].contiguous().stride() if x.dim() > 1 else ()
    view = memory.as_strided(x.shape, (stride, *inner))
    return view.copy_(x)


VIEWS = {
    "every other element": _every_other,
    "not aligned": not_aligned,
    "rows with gaps": _long_rows,
    "dimensions reversed": _reversed_dimensions,
    "column by column": _columns,
    "channels last": _channels_last,
    "one row for all": _expanded,
    "one column for all": _expanded_columns,
    "overlapping": _overlapping,
    "negative bit": _negative,
    "conjugate bit": _conjugate,
    "rows far apart": _far,
}
REPEATING = ("one row for all", "one column for all", "overlapping")  # several elements are one in memory


def view_of(x: Tensor, name: str) -> Tensor | None:
    """None if x cannot have this view. The values of a view in REPEATING differ from those of x."""
    if not x.dim() or not x.numel():
        return None
    return VIEWS[name](x)


def amid(x: Tensor, value: float) -> tuple[Tensor, Tensor]:
    """A contiguous copy amid 128 elements of this value, and the memory as a whole."""
    memory = x.new_full((x.numel() + 128,), value)
    memory[64:-64] = x.flatten()
    return memory[64:-64].view(x.shape), memory


def at_page(x: Tensor, is_end: bool) -> Tensor:
    """A contiguous copy on the CPU that ends (or begins) where memory ends: the next access ends the process."""
    page, size = mmap.PAGESIZE, x.numel() * x.element_size()
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    offset = page + (pages * page - size if is_end else 0)
    found = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=offset).view(x.shape).copy_(x)
    protect = ctypes.CDLL(None).mprotect
    for start in (0, (pages + 1) * page):
        if protect(ctypes.c_void_p(address + start), ctypes.c_size_t(page), 0):
            raise OSError("mprotect failed")
    return found
