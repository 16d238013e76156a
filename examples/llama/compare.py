"""Tokens per second of a Llama of 8 billion parameters (random weights), ours and others. Needs a GPU, takes minutes.

    python3 examples/llama/compare.py --json FILE

torch.compile: our model with torch's functions (plain.py) and cuDNN's attention, the fastest backend of
scaled_dot_product_attention with a mask; each layer compiled, a step in one CUDA graph. torch's 4 bits: its kernel in
all layers, the last one, too. Everyone chooses the most probable token, after a context of so many tokens; the cache
has room for 128 more.
"""

import statistics
import time
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from generate import Generator
from llama import Cache, Llama, build, operators
from one_kernel import KERNELS, OneKernelGenerator
from plain import TorchCache, set_norm
from run import SIZES
from steps import load
from torch import Tensor, nn
from torch._inductor import config as inductor

from lab import lesson, sources  # of the workbench, only options and files

CONFIG, CUDA, BF16, NEW = SIZES["8b"], torch.device("cuda"), torch.bfloat16, 128
SHORT, LONG, PROMPT, MANY = (1, 512), (1, 4096), (0, 2048), [(16, 1024), (64, 1024)]  # batch and context; 0: to read it
TWO = [(2, 512), (2, 4096)]


class TorchInt4(nn.Module):
    """torch's own 4-bit kernel (tinygemm) with random codes, in groups of 128 columns."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        n, k = linear.weight.shape
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=CUDA)
        self.packed = torch._convert_weight_to_int4pack(codes, 8)
        self.scales_and_zeros = torch.rand(k // 128, n, 2, dtype=BF16, device=CUDA) * k**-0.5

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm(x, self.packed, 128, self.scales_and_zeros)


def time_prompt(model: Llama, kind: type[Cache], tokens: int) -> float:
    cache, prompt, times = kind(CONFIG, 1, tokens + NEW, BF16, CUDA), torch.randint(CONFIG.vocab_size, (tokens,)), []
    for _ in range(6):
        start = time.perf_counter()
        model(prompt.to(CUDA), cache, 0)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def make_row(who: str, batch: int, context: int, ms: float, **more: str) -> dict:
    speed = 1e3 / ms * (batch or context)
    return {"who": who, "batch": batch, "context": context, "ms": ms, "tokens_per_s": speed} | more


def measure(who: str, model: Llama, points: list, kind: type[Cache] = Cache, dtype: torch.dtype = BF16) -> Iterator:
    for batch, context in points:
        torch.compiler.reset()  # sizes are constants
        # All layers share what torch.compile makes of one. The first one's input is like the others' only with zeros
        # in memory of their own.
        model.zero = model.zero.new_zeros(batch or context, CONFIG.hidden_size)
        # With one row torch.compile can make the products itself, which pays if they are tuned: so does gpt-fast.
        with inductor.patch(coordinate_descent_tuning=batch == 1):
            if batch:
                ms = Generator(model, batch, context + NEW, dtype, kind=kind).speed(context)
            else:
                ms = time_prompt(model, kind, context)
        yield make_row(who, batch, context, ms, cache=str(dtype))


def measure_transformers() -> dict:
    """generate() with its static cache: it compiles the model, with CUDA graphs."""
    import transformers

    sizes = {name: x for name, x in vars(CONFIG).items() if name not in ("rope_theta", "rope_scaling", "eos_token_id")}
    torch.set_default_dtype(BF16)
    with CUDA:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, eos_token_id=None)).eval()
        prompt = torch.randint(CONFIG.vocab_size, SHORT)
    torch.set_default_dtype(torch.float32)
    how = {"do_sample": False, "cache_implementation": "static", "max_new_tokens": NEW, "pad_token_id": 0}
    for _ in range(3):  # the first ones compile and capture
        times: list[float] = []
        clock = SimpleNamespace(put=lambda _, times=times: times.append(time.perf_counter()), end=lambda: None)
        model.generate(prompt, attention_mask=torch.ones_like(prompt), streamer=clock, **how)
    ms = (times[-1] - times[1]) * 1e3 / (len(times) - 2)  # the first call has the prompt, the second one its token
    return make_row("transformers", *SHORT, ms, version=transformers.__version__)


@torch.no_grad()
def measure_all(environment: dict) -> Iterator[dict]:
    environment["sources"] |= sources.state([KERNELS])
    model = load(CONFIG)
    yield from measure("ours, bf16", model, [SHORT, LONG, PROMPT])
    yield from measure("ours, 4 bits", load(CONFIG, True), [SHORT, LONG])
    quarter, who = load(CONFIG, True, True), "ours, 4 bits, also the last layer"
    yield from measure(who, quarter, [SHORT, LONG, *TWO, *MANY, PROMPT])
    yield from measure(who, quarter, [(1, 32768)], dtype=torch.int8)
    for batch, context in (SHORT, LONG, *TWO):
        ms = OneKernelGenerator(quarter, batch, context + NEW).speed(context)
        yield make_row("ours, 4 bits, one kernel", batch, context, ms, cache=str(BF16))
    for module in (*set_norm(model).layers, model.norm):
        module.compile(dynamic=False)
    torch.backends.cuda.enable_math_sdp(False)  # so it takes cuDNN's
    yield from measure("torch.compile, bf16", model, [SHORT, LONG, *MANY, PROMPT], TorchCache)
    for name, module in [*model.named_modules()]:
        if isinstance(module, nn.Linear):
            model.set_submodule(name, TorchInt4(module))
    yield from measure("torch.compile, torch's 4 bits", model, [SHORT], TorchCache)
    torch.backends.cuda.enable_math_sdp(True)
    yield measure_transformers()


def plot(figure, content: dict) -> None:
    """Bars of tokens per second for one text."""
    figure.set_size_inches(8.6, 2.4)
    rows = [row for row in content["results"] if (row["batch"], row["context"]) == SHORT]
    rows.sort(key=lambda row: -row["tokens_per_s"])
    axes, colours = figure.subplots(), ["tab:green" if "ours" in row["who"] else "0.65" for row in rows]
    bars = axes.barh([row["who"] for row in rows], [row["tokens_per_s"] for row in rows], color=colours)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.margins(x=0.08)
    axes.set_xlabel("tokens per second, one text, 512 tokens of context")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), lambda: operators.is_ready(build), measure_all)
