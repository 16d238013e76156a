"""Tokens per second of a Llama of 8 billion parameters (random weights), ours and others. Needs a GPU, takes minutes.

    python3 examples/llama/compare.py --json FILE --plot FILE

torch.compile: our model with torch's functions (plain.py) and cuDNN's attention, the fastest with a mask, each layer
compiled, a step in one CUDA graph. torch's 4 bits: its kernel in all layers, the last one, too. Everyone chooses the
most probable token, after a context of so many tokens; the cache has room for 128 more.
"""

import gc
import statistics
import sys
import time
from pathlib import Path

import torch
from generate import Generator
from llama import Cache, Llama, build
from load import GatedLinear, Loader, random_weights
from plain import TorchCache, set_norm
from run import SIZES
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson  # of the workbench, only options and files

CONFIG, CUDA, BF16, NEW, PROMPT = SIZES["8b"], torch.device("cuda"), torch.bfloat16, 128, 2048
POINTS = [(1, 512), (1, 4096), (16, 1024), (64, 1024)]  # batch and context
OURS = {"ours, bf16": (False, False), "ours, 4 bits": (True, False), "ours, 4 bits, also the last layer": (True, True)}


class TorchInt4(nn.Module):
    """torch's own 4-bit kernel (tinygemm), with random codes, in groups of 128 columns."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        (n, k), self.is_gated = linear.weight.shape, isinstance(linear, GatedLinear)
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=CUDA)
        self.packed = torch._convert_weight_to_int4pack(codes, 8)
        self.scales_and_zeros = torch.rand(k // 128, n, 2, dtype=BF16, device=CUDA) * k**-0.5

    def forward(self, x: Tensor) -> Tensor:
        y = torch._weight_int4pack_mm(x, self.packed, 128, self.scales_and_zeros)
        if self.is_gated:
            gate, up = y.chunk(2, -1)
            y = nn.functional.silu(gate) * up
        return y


def load(is_int4: bool = False, is_last_int4: bool = False) -> Llama:
    return Llama(CONFIG, Loader(random_weights(CUDA, BF16), CUDA, BF16, is_int4, is_last_int4))


def load_compiled(is_torch_int4: bool) -> Llama:
    model = load()
    set_norm(model)
    for name, module in [*model.named_modules()] if is_torch_int4 else []:
        if isinstance(module, nn.Linear):
            model.set_submodule(name, TorchInt4(module))
    for module in (*model.layers, model.norm):
        module.compile(dynamic=False)
    return model


def measure(
    who: str, model: Llama, points: list[tuple], kind: type[Cache] = Cache, dtype: torch.dtype = BF16
) -> list[dict]:
    """Milliseconds of a step at each point; of PROMPT tokens, read at once, for a point of batch 0."""
    rows = []
    for batch, context in points:
        torch.compiler.reset()
        generator = Generator(model, batch or 1, context + NEW, dtype, kind=kind)
        if batch:
            ms = generator.speed(context, NEW)
        else:
            prompt, times = torch.randint(CONFIG.vocab_size, (1, context)).tolist(), []
            for _ in range(6):
                start = time.perf_counter()
                generator.read(prompt)
                torch.cuda.synchronize()
                times.append((time.perf_counter() - start) * 1e3)
            ms = statistics.median(times[1:])
        row = {"who": who, "batch": batch, "context": context, "cache": str(dtype)[6:], "ms": ms}
        rows.append(row | ({"tokens_per_s": batch * 1e3 / ms} if batch else {}))
        print(rows[-1], flush=True)
        del generator
        gc.collect()
        torch.cuda.empty_cache()
    return rows


class Stopwatch:
    """What generate() calls with each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def measure_transformers() -> list[dict]:
    """generate() with its static cache: it compiles the model, with CUDA graphs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    names = LlamaConfig().to_dict().keys() & vars(CONFIG).keys() - {"rope_scaling", "eos_token_id"}
    with CUDA:
        model = LlamaForCausalLM(
            LlamaConfig(**{name: getattr(CONFIG, name) for name in names}, eos_token_id=None)
        ).eval()
        prompt = torch.randint(CONFIG.vocab_size, (1, POINTS[0][1]))
    how = {"do_sample": False, "cache_implementation": "static", "max_new_tokens": NEW, "pad_token_id": 0}
    for _ in range(3):  # the first ones compile and capture
        watch = Stopwatch()
        model.generate(prompt, attention_mask=torch.ones_like(prompt), streamer=watch, **how)
    first, *_, last = watch.times[1:]  # after the prompt
    ms = (last - first) * 1e3 / (NEW - 1)
    return [{"who": "transformers", "batch": 1, "context": POINTS[0][1], "ms": ms, "tokens_per_s": 1e3 / ms}]


@torch.no_grad()
def measure_all(_) -> list[dict]:
    torch.set_default_dtype(BF16)
    rows = measure_transformers()
    torch.set_default_dtype(torch.float32)
    torch._inductor.config.coordinate_descent_tuning = True  # as gpt-fast does
    torch.backends.cuda.enable_math_sdp(False)
    for is_int4, who in enumerate(("torch.compile, bf16", "torch.compile, torch's 4 bits")):
        gc.collect()
        points = POINTS[:3] if is_int4 else [*POINTS, (0, PROMPT)]
        rows += measure(who, load_compiled(bool(is_int4)), points, TorchCache)
    for who, bits in OURS.items():
        gc.collect()
        start = time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        model = load(*bits)
        torch.cuda.synchronize()
        rows.append({"who": who, "start_s": time.perf_counter() - start})
        rows += measure(who, model, [*POINTS, (0, PROMPT)])
        rows += measure(who, model, [(1, 32768)], dtype=torch.int8)
        rows.append({"who": who, "peak_gb": torch.cuda.max_memory_allocated() / 1e9})
    return rows


def plot(figure, content: dict) -> None:
    """Bars of tokens per second for one row."""
    figure.set_size_inches(8.6, 2.4)
    rows = [row for row in content["results"] if (row.get("batch"), row.get("context")) == POINTS[0]][::-1]
    colours = ["tab:green" if row["who"] in OURS else "0.65" for row in rows]
    axes = figure.subplots()
    axes.bar_label(
        axes.barh([row["who"] for row in rows], [row["tokens_per_s"] for row in rows], color=colours),
        fmt="%.0f",
        padding=3,
    )
    axes.set(xlabel="tokens per second: Llama, 8 billion parameters, batch 1, 512 tokens of context")
    axes.spines[["top", "right"]].set_visible(False)


def is_ready() -> bool:
    build()
    return True


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__, has_plot=True).parse_args(), is_ready, measure_all, plot)
