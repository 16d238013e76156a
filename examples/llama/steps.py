"""The ladder of docs/14_llama.md, from torch's modules to our model; and the kernels of a step. Needs a GPU."""

import ctypes
import re
from collections.abc import Iterator

import torch
from generate import Generator
from llama import Cache, Config, Llama, add_rms_norm, int4_linear
from load import Loader
from plain import TorchCache, set_norm
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
        ms = generator.speed(context, 16 if is_eager else 64)
        return {"step": name, "context": context, "ms": ms, "tokens_per_s": 1e3 / ms}

    model = set_norm(load(config, False, False, True))
    yield time_step("torch's modules", TorchCache, is_eager=True)
    yield time_step("a CUDA graph", TorchCache)
    int4_linear.replace_linear_layers(model, skip=["last"])
    yield time_step("4-bit weights", TorchCache)
    set_norm(model, add_rms_norm.add_rms_norm)
    yield time_step("add and RMSNorm as one", TorchCache)
    yield time_step("append and attend")
    model = None
    model = load(config, True)
    yield time_step("q, k, v as one; gate, up, silu as one")
    yield time_step("kernels overlap", overlaps=True)
    model = None
    model = load(config, True, True)
    yield time_step("last layer in 4 bits", overlaps=True)


def kernels(generator: Generator) -> list[dict]:
    """A step's kernels, the longest first. A time begins when the kernel before has ended, so they add up."""
    torch.cuda.synchronize()  # a text that has ended early leaves steps in the queue
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        generator.replay()
        torch.cuda.synchronize()
    spans = sorted((x.time_range.end, x.time_range.start, x.name) for x in found.events() if x.device_time_total)
    times: dict[str, list[float]] = {}
    before = spans[0][1]
    for end, _, name in spans:
        times.setdefault(re.sub(r"^void |<.*|\(.*", "", name), []).append(end - before)
        before = end
    rows = [{"name": name, "calls": len(us), "us": sum(us)} for name, us in times.items()]
    return sorted(rows, key=lambda row: -row["us"])
