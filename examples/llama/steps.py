"""The ladder of docs/18_llama.md, from torch's modules to our model; and the kernels of a step. Needs a GPU."""

import ctypes
import re
from collections.abc import Iterator

import torch
from generate import Generator
from llama import Cache, Config, Llama, TwoKernels, add_rms_norm, int4_linear
from load import Loader
from one_kernel import OneKernelGenerator, check
from plain import TorchCache, set_norm
from torch import nn
from torch.profiler import ProfilerActivity, profile


def remove_overlap(graph: torch.cuda.CUDAGraph) -> None:
    """Let each kernel of a graph wait for the end of the one before. Not after the first replay."""
    driver, handle, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()

    def call(name: str, *arguments) -> None:
        if error := getattr(driver, name)(handle, *arguments):
            raise RuntimeError(f"{name}: error {error} of the CUDA driver")

    call("cuGraphGetEdges_v2", None, None, None, ctypes.byref(count))
    first, second = ((ctypes.c_void_p * count.value)() for _ in range(2))
    kinds, ordinary = ((ctypes.c_uint64 * count.value)() for _ in range(2))  # 0: the edge waits for the end
    call("cuGraphGetEdges_v2", first, second, kinds, ctypes.byref(count))
    call("cuGraphRemoveDependencies_v2", first, second, kinds, count)
    call("cuGraphAddDependencies_v2", first, second, ordinary, count)


class CacheOfTwoKernels(Cache):
    of_layer = TwoKernels


def load(config: Config, *how: bool) -> Llama:
    return Llama(config, Loader(torch.device("cuda"), torch.bfloat16, *how))


def ladder(config: Config, context: int) -> Iterator[dict]:
    """A row for each step, with milliseconds per token."""
    torch.backends.cuda.enable_math_sdp(False)  # with a mask torch would choose its slowest attention, not cuDNN's

    def time_step(name: str, kind: type[Cache] = Cache, is_eager: bool = False, overlaps: bool = False) -> dict:
        generator = Generator(model, 1, context + 128, kind=kind)
        if is_eager:
            generator.replay, generator.behind = generator.step, 0
        elif not overlaps:
            remove_overlap(generator.graph)
        return make_row(name, generator.speed(context, 16 if is_eager else 64))

    def make_row(name: str, ms: float) -> dict:
        return {"step": name, "context": context, "ms": ms, "tokens_per_s": 1e3 / ms}

    model = set_norm(load(config, False, False, True))
    yield time_step("torch's modules", TorchCache, is_eager=True)
    yield time_step("a CUDA graph", TorchCache)
    int4_linear.replace_linear_layers(model, skip=["last"])
    yield time_step("4-bit weights", TorchCache)
    set_norm(model, add_rms_norm.add_rms_norm)
    yield time_step("add and RMSNorm as one", TorchCache)
    yield time_step("append and attend", CacheOfTwoKernels)
    model = None
    model = set_norm(load(config, True), add_rms_norm.add_rms_norm)
    yield time_step("q, k, v as one; gate, up, silu as one", CacheOfTwoKernels)
    yield time_step("kernels overlap", CacheOfTwoKernels, overlaps=True)
    model = None
    model = set_norm(load(config, True, True), add_rms_norm.add_rms_norm)
    yield time_step("last layer in 4 bits", CacheOfTwoKernels, overlaps=True)
    yield time_step("append within attend", overlaps=True)
    set_norm(model, add_rms_norm.add_rms_norm, is_shared=True)
    yield time_step("norms within the products", overlaps=True)
    try:
        check(model, 1)
    except ValueError as error:
        print(error)
        return
    for name, has_barriers in (("one kernel, with barriers", True), ("numbers with tags", False)):
        generator = OneKernelGenerator(model, 1, context + 128, has_barriers=has_barriers)
        yield make_row(name, generator.speed(context))
        del generator


def name_parts(kernels: list[str]) -> list[str]:
    """The part of a step that each kernel computes. The 4-bit products are told apart by their order."""
    parts = ["norm" if name.startswith("forward_") else name.rpartition("::")[2] or name for name in kernels]
    products = [i for i, name in enumerate(kernels) if name.startswith("four_bit::")]
    for count, i in enumerate(products):
        parts[i] = ("q, k, v", "o", "gate, up", "down")[count % 4]
    if len(products) % 4 == 1:
        parts[products[-1]] = "last layer"
    return parts


def read_bytes(generator: Generator) -> dict[str, float]:
    """What the large parts of a step read: their weights; and of the cache what is filled."""
    layers, cache = generator.model.layers, generator.cache
    modules = {"q, k, v": [x.qkv for x in layers], "o": [x.o for x in layers], "gate, up": [x.gate_up for x in layers]}
    modules |= {"down": [x.down for x in layers], "last layer": [generator.model.last]}
    sizes = {part: sum(x.nbytes for x in nn.ModuleList(each).state_dict().values()) for part, each in modules.items()}
    share = cache.counts[1].float().mean().item() / generator.capacity
    return sizes | {"attend": share * sum(x.nbytes for x in cache.tensors)}


def kernels(generator: Generator) -> list[dict]:
    """A row for each part of a step. A kernel's time begins when the one before has ended, so times add up."""
    torch.cuda.synchronize()  # a text that has ended early leaves steps in the queue
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        generator.replay()
        torch.cuda.synchronize()
    spans = sorted((x.time_range.end, x.time_range.start, x.name) for x in found.events() if x.device_time_total)
    names = [re.sub(r"^void |<.*|\(.*", "", name) for *_, name in spans]
    rows, before, sizes = {}, spans[0][1], read_bytes(generator)
    for (end, *_), name, part in zip(spans, names, name_parts(names), strict=True):
        row = rows.setdefault(part, {"part": part, "kernel": name, "calls": 0, "us": 0.0, "bytes": sizes.get(part, 0)})
        row["calls"] += 1
        row["us"] += end - before
        before = end
    return [*rows.values()]
