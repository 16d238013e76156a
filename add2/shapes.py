"""Shapes without values. Fake kernels give a result's shape, dtype and device to torch.compile, torch.export and device
"meta"; they refuse what kernel/add2.cpp refuses, so that an error shows while tracing, too. batch_first is for vmap."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@torch.library.register_fake("add2::add2")
def add2(a: Tensor, b: Tensor) -> Tensor:
    check_alike(a=a, b=b)
    if a.shape != b.shape:
        raise RuntimeError(f"add2: b has shape {[*b.shape]}, expected {[*a.shape]}")
    return torch.empty_like(a, memory_format=torch.contiguous_format)


@torch.library.register_fake("add2::torch_launch_add2")
def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    check_alike(c=c, a=a, b=b)
    for name, x in {"c": c, "a": a, "b": b}.items():
        if n < 0 or n > x.numel():
            raise RuntimeError(f"add2: n is {n}, expected 0 to {x.numel()}, all of {name}")
    if not c.is_contiguous():
        raise RuntimeError(f"add2: c of shape {[*c.shape]} is not contiguous")
    for name, x in {"a": a, "b": b}.items():
        if c.untyped_storage() is x.untyped_storage() and overlap(c, x):
            raise RuntimeError(f"add2: c shares memory with {name}, but is not {name} itself; pass a clone()")


def check_alike(**tensors: Tensor) -> None:
    (_, first), *_ = tensors.items()
    for name, x in tensors.items():
        if x.device != first.device:
            raise RuntimeError(f"add2: {name} is on {x.device}, expected {first.device}")
        if x.dtype != first.dtype:
            raise RuntimeError(f"add2: {name} is {str(x.dtype)[6:]}, expected {str(first.dtype)[6:]}")
    if first.dtype not in DTYPES:
        raise RuntimeError("add2: the dtype is not float32, float64, float16 or bfloat16")


def overlap(c: Tensor, x: Tensor) -> bool:
    """Whether they share elements, unless x is c itself. x counts from its first element to its last."""
    begin, c_begin = x.storage_offset(), c.storage_offset()
    if c.numel() == 0 or x.numel() == 0 or (begin == c_begin and x.is_contiguous()):
        return False
    reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return begin < c_begin + c.numel() and c_begin < begin + reach


def batch_first(info, in_dims: tuple, *inputs: Tensor) -> list[Tensor]:
    """For vmap: a batch of additions is one addition; an input that is no batch is the same for all of it."""
    pairs = zip(inputs, in_dims, strict=False)
    return [x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs]
