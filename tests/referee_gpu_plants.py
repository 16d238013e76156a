"""Operators for CUDA with one planted fault each, and a twin without it. The kernels are Python."""

import torch
from referee_plants import Plant, multiply, product

PLANTS: dict[str, Plant] = {}


def plant(name, check, broken, clean=None):
    operators = [multiply(name + end, key="CUDA", **parts) for end, parts in (("", broken), ("_twin", clean or {}))]
    PLANTS[name] = Plant(check, *operators)


class Memory:
    """Memory by its address."""

    def __init__(self, address, floats):
        self.__cuda_array_interface__ = {"shape": (floats,), "typestr": "<f4", "data": (address, False), "version": 3}


def on_default_stream(a, b):
    with torch.cuda.stream(torch.cuda.default_stream(a.device)):
        return product(a, b)


def on_a_stream_of_its_own(a, b, is_joined=False):
    own, current = torch.cuda.Stream(), torch.cuda.current_stream()
    own.wait_stream(current)
    with torch.cuda.stream(own):
        y = product(a, b)
    for x in (a, b):
        x.record_stream(own)
    if is_joined:
        current.wait_stream(own)
        y.record_stream(current)
    return y


def waits(a, b):
    torch.cuda.current_stream().synchronize()
    return product(a, b)


def reads_a_number(ctx, grad):
    a, b = ctx.saved_tensors
    scale = 1.0 if grad.abs().max().item() else 0.0
    return (grad * b * scale).sum_to_size(a.shape), (grad * a * scale).sum_to_size(b.shape)


def backward_on_default_stream(ctx, grad):
    a, b = ctx.saved_tensors
    with torch.cuda.stream(torch.cuda.default_stream(grad.device)):
        return (grad * b).sum_to_size(a.shape), (grad * a).sum_to_size(b.shape)


LAST = {}


def takes_the_last_result(a, b):
    """While a graph is captured, it returns what it computed before."""
    key = (a.shape, b.shape, a.dtype, b.dtype)
    if not torch.cuda.is_current_stream_capturing():
        LAST[key] = product(a, b)
    return LAST[key].clone() if key in LAST else product(a, b)


def on_current_device(a, b):
    y = torch.empty(
        torch.broadcast_shapes(a.shape, b.shape), dtype=torch.promote_types(a.dtype, b.dtype), device="cuda"
    )
    return y.copy_(a * b)


def on_device_of_a(a, b):
    with torch.cuda.device(a.device):
        return on_current_device(a, b)


def writes_past_the_end(a, b):
    y = product(a, b)
    if y.dtype == torch.float32 and y.numel():
        torch.as_tensor(Memory(y.data_ptr() + 4 * y.numel(), 1), device=y.device).fill_(1.5)
    return y


def writes_last_again(a, b):
    y = product(a, b)
    if y.dtype == torch.float32 and y.numel():
        last = torch.as_tensor(Memory(y.data_ptr() + 4 * y.numel() - 4, 1), device=y.device)
        last.copy_(last * 1)
    return y


def reads_past_the_end(a, b):
    y = product(a, b)
    if y.dtype == torch.float32 and b.numel() and b.is_contiguous():
        y.view(-1)[-1:] += 0 * torch.as_tensor(Memory(b.data_ptr() + 4 * b.numel(), 1), device=y.device)
    return y


CACHE = {}


def cached(a, b):
    key = (a.data_ptr(), b.data_ptr(), a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype)
    if key not in CACHE:
        CACHE[key] = product(a, b)
    return CACHE[key].clone()


def adds_to_old_memory(a, b):
    """torch.empty where torch.zeros was meant: new memory of the driver is zero, so the first calls are right."""
    y = product(a, b)
    return torch.empty_like(y).nan_to_num_(0, 0, 0).clamp_(-1e3, 1e3).add_(y)


plant("default_stream", "current_stream", {"kernel": on_default_stream})
plant(
    "own_stream",
    "current_stream",
    {"kernel": on_a_stream_of_its_own},
    {"kernel": lambda a, b: on_a_stream_of_its_own(a, b, is_joined=True)},
)
plant("backward_on_default_stream", "current_stream", {"backward": backward_on_default_stream})
plant("waits", "synchronization", {"kernel": waits})
plant("reads_a_number", "synchronization", {"backward": reads_a_number})
plant("captured_result", "cuda_graph", {"kernel": takes_the_last_result})
plant("current_device", "current_device", {"kernel": on_current_device}, {"kernel": on_device_of_a})
plant(
    "writes_past_the_end_on_gpu", "after_results_on_gpu", {"kernel": writes_past_the_end}, {"kernel": writes_last_again}
)
plant("reads_past_the_end_on_gpu", "neighbours", {"kernel": reads_past_the_end})
plant("cached_on_gpu", "stale", {"kernel": cached})
plant("old_memory_on_gpu", "uninitialized_on_gpu", {"kernel": adds_to_old_memory})

OPERATORS = [each for p in PLANTS.values() for each in (p.broken, p.twin)]
