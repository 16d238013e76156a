"""Tokens per second of a Llama of 8 billion parameters (random weights), ours and others. Needs a GPU, takes minutes.

    python3 examples/llama/compare.py --json FILE --plot FILE

torch.compile: our model with torch's functions (plain.py) and cuDNN's attention, the fastest with a mask; each layer
compiled, a step in one CUDA graph. torch's 4 bits: its kernel in all layers, the last one, too. Everyone chooses the
most probable token, after a context of so many tokens; the cache has room for 128 more.
"""

import gc
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from generate import Generator
from llama import Cache, Llama, build, int4_linear
from load import Loader, random_weights
from plain import TorchCache, set_norm
from run import SIZES
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson  # of the workbench, only options and files

CONFIG, CUDA, BF16, NEW = SIZES["8b"], torch.device("cuda"), torch.bfloat16, 128
SHORT, LONG, PROMPT, MANY = (1, 512), (1, 4096), (0, 2048), [(16, 1024), (64, 1024)]  # batch and context; 0: to read it
OURS = {  # 4 bits, also the last layer, and where it is timed
    "ours, bf16": (False, False, [SHORT, LONG, PROMPT]),
    "ours, 4 bits": (True, False, [SHORT, LONG]),
    "ours, 4 bits, also the last layer": (True, True, [SHORT, LONG, *MANY, PROMPT]),
}


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


def time_prompt(generator: Generator, tokens: int) -> float:
    prompt, times = torch.randint(CONFIG.vocab_size, (1, tokens)).tolist(), []
    for _ in range(6):
        start = time.perf_counter()
        generator.read(prompt)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def measure(who: str, model: Llama, points: list, kind: type[Cache] = Cache, dtype: torch.dtype = BF16) -> list[dict]:
    rows = []
    for batch, context in points:
        torch.compiler.reset()  # sizes are constants
        generator = Generator(model, batch or 1, context + NEW, dtype, kind=kind)
        ms = generator.speed(context) if batch else time_prompt(generator, context)
        rows.append({"who": who, "batch": batch, "context": context, "cache": str(dtype), "ms": ms})
        rows[-1] |= {"tokens_per_s": 1e3 / ms * (batch or context)}
        print(rows[-1], flush=True)
        del generator
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def measure_transformers() -> list[dict]:
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
    row = {"who": "transformers", "batch": 1, "context": SHORT[1], "ms": ms, "tokens_per_s": 1e3 / ms}
    return [row | {"version": transformers.__version__}]


@torch.no_grad()
def measure_all(_) -> list[dict]:
    rows = []
    for who, (*bits, points) in OURS.items():
        start = time.perf_counter()
        model = load(*bits)
        torch.cuda.synchronize()
        rows.append({"who": who, "start_s": time.perf_counter() - start})
        rows += measure(who, model, points)
    rows += measure(who, model, [(1, 32768)], dtype=torch.int8)
    del model
    torch._inductor.config.coordinate_descent_tuning = True  # as gpt-fast does
    torch.backends.cuda.enable_math_sdp(False)  # so it takes cuDNN's
    rows += measure("torch.compile, bf16", load_compiled(False), [SHORT, LONG, *MANY, PROMPT], TorchCache)
    rows += measure("torch.compile, torch's 4 bits", load_compiled(True), [SHORT], TorchCache)
    torch._inductor.config.coordinate_descent_tuning = False
    torch.backends.cuda.enable_math_sdp(True)
    return rows + measure_transformers()


def plot(figure, content: dict) -> None:
    """Bars of tokens per second for one text."""
    figure.set_size_inches(8.6, 2.4)
    rows = [row for row in content["results"] if (row.get("batch"), row.get("context")) == SHORT]
    rows.sort(key=lambda row: -row["tokens_per_s"])
    axes, colours = figure.subplots(), ["tab:green" if row["who"] in OURS else "0.65" for row in rows]
    bars = axes.barh([row["who"] for row in rows], [row["tokens_per_s"] for row in rows], color=colours)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.margins(x=0.08)
    axes.set_xlabel("tokens per second: Llama of 8 billion parameters, one text, 512 tokens of context")
    axes.spines[["top", "right"]].set_visible(False)


def is_ready() -> bool:
    return int4_linear.has_toolkit() and build() is None


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__, has_plot=True).parse_args(), is_ready, measure_all, plot)
