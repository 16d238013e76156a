"""Shapes without values. Fake kernels give a result's shape, layout, dtype and device to torch.compile, torch.export
and device "meta"; they refuse what kernel/add2.cpp refuses (but sparse tensors and freed memory), so that an error
shows while tracing, too. Sizes may be symbols without a value: torch._check() notes for them what an `if` cannot ask.
batch_first is for vmap."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@torch.library.register_fake("add2::add2")
def add2(a: Tensor, b: Tensor) -> Tensor:
    check_alike(a=a, b=b)
    check_shapes(a, b)
    return torch.empty_like(a)


@torch.library.register_fake("add2::torch_launch_add2")
def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    check_alike(c=c, a=a, b=b)
    check_length(n, c=c, a=a, b=b)
    check_contiguous(c)
    for name, x in {"a": a, "b": b}.items():
        if c.untyped_storage() is x.untyped_storage():
            check_overlap(c, x, name)


def check_alike(**tensors: Tensor) -> None:
    (_, first), *_ = tensors.items()
    for name, x in tensors.items():
        if x.dtype not in DTYPES:
            known = ", ".join(str(dtype)[6:] for dtype in DTYPES)
            raise RuntimeError(f"add2: the dtype is not {known} (argument {name})")
        if x.device != first.device:
            raise RuntimeError(f"add2: {name} is on {x.device}, expected {first.device}")
        if x.dtype != first.dtype:
            raise RuntimeError(f"add2: {name} is {str(x.dtype)[6:]}, expected {str(first.dtype)[6:]}")


def check_shapes(a: Tensor, b: Tensor) -> None:
    def message() -> str:
        return f"add2: b has shape {[*b.shape]}, expected {[*a.shape]}"

    if a.dim() != b.dim():
        raise RuntimeError(message())
    for size_a, size_b in zip(a.shape, b.shape, strict=True):
        torch._check(size_a == size_b, message)


def check_length(n: int, **tensors: Tensor) -> None:
    def check(name: str, x: Tensor) -> None:
        def message() -> str:
            return f"add2: n is {n}, expected 0 to {x.numel()}, all of {name}"

        torch._check(n >= 0, message)
        torch._check(n <= x.numel(), message)

    for name, x in tensors.items():
        check(name, x)


def check_contiguous(c: Tensor) -> None:
    if not c.is_contiguous():
        raise RuntimeError(f"add2: c of shape {[*c.shape]} is not contiguous")


def check_overlap(c: Tensor, x: Tensor, name: str) -> None:
    """Refuse common elements, unless x is c itself. x counts from its first element to its last."""
    begin, c_begin = x.storage_offset(), c.storage_offset()
    if begin == c_begin and x.is_contiguous():
        return
    reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    if c.numel() and x.numel() and begin < c_begin + c.numel() and c_begin < begin + reach:
        raise RuntimeError(f"add2: c shares memory with {name}, but is not {name} itself; pass a clone()")


def batch_first(info, in_dims: tuple, *inputs: Tensor) -> list[Tensor]:
    """For vmap: a batch of additions is one addition; an input that is no batch is the same for all of it."""
    pairs = zip(inputs, in_dims, strict=False)
    return [x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs]
