"""One token through the linear layers of an 8-billion-parameter Llama, in bf16 and in 4 bits. Needs a GPU.

python3 examples/int4_linear/model.py --json FILE

Random weights, in a CUDA graph; attention, norms and the last layer are left out.
"""

from collections.abc import Iterator
from functools import partial

import torch
from bench import clock, is_ready, lesson
from int4_linear import Int4Linear, replace_linear_layers
from torch import Tensor, nn

HIDDEN, FEED_FORWARD, KEYS, LAYERS = 4096, 14336, 1024, 32
SIZES = {"q": (HIDDEN, HIDDEN), "k": (KEYS, HIDDEN), "v": (KEYS, HIDDEN), "o": (HIDDEN, HIDDEN)}
SIZES |= {"gate": (FEED_FORWARD, HIDDEN), "up": (FEED_FORWARD, HIDDEN), "down": (HIDDEN, FEED_FORWARD)}


def fuse(layer: nn.ModuleDict) -> nn.ModuleDict:
    """The same layer in four calls instead of seven, with silu(gate) * up in the third."""
    qkv = Int4Linear.cat([layer["q"], layer["k"], layer["v"]])
    gate_up = Int4Linear.cat([layer["gate"], layer["up"]], gated=True)
    return nn.ModuleDict({"qkv": qkv, "o": layer["o"], "gate_up": gate_up, "down": layer["down"]})


@torch.no_grad()
def measure(_: dict) -> Iterator[dict]:
    with torch.device("cuda"):
        model = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(k, n, bias=False, dtype=torch.bfloat16) for name, (n, k) in SIZES.items()})
            for _ in range(LAYERS)
        )
    for weight in model.parameters():
        weight.normal_()

    def step(model: nn.ModuleList, xs: dict[int, Tensor]) -> None:
        for layer in model:
            for linear in layer.values():
                linear(xs[linear.in_features])

    def times(model: nn.ModuleList) -> dict[int, float]:
        found = {}
        for batch in (1, 16, 64):
            xs = {k: torch.randn(batch, k, device="cuda", dtype=torch.bfloat16) for k in (HIDDEN, FEED_FORWARD)}
            found[batch] = clock.gpu([partial(step, model, xs)]).median_us / 1e3
        return found

    x = torch.randn(16, HIDDEN, device="cuda", dtype=torch.bfloat16)
    bf16, true = times(model), model[0]["q"](x).float()
    replace_linear_layers(model)
    found, int4 = model[0]["q"](x).float(), times(model)
    fused = times(nn.ModuleList(fuse(layer) for layer in model))
    for batch in bf16:
        rates = {"tokens_per_s": [round(1e3 * batch / each[batch]) for each in (bf16, int4, fused)]}
        yield {"batch": batch, "bf16_ms": bf16[batch], "int4_ms": int4[batch], "fused_ms": fused[batch]} | rates
    # By rounding its weight to 4 bits, a layer's result changes by this part of its norm.
    yield {"error of a layer": ((found - true).norm() / true.norm()).item()}


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), is_ready, measure)
