"""One token of an 8-billion-parameter Llama (random weights) with bf16 and with 4-bit linear layers. Needs a GPU.

python3 examples/int4_linear/model.py               # its linear layers, in a CUDA graph
python3 examples/int4_linear/model.py --generate    # also transformers' LlamaForCausalLM: generate(), minutes
"""

import time
from functools import partial

import torch
from bench import clock, is_ready, lesson
from int4_linear import replace_linear_layers
from torch import nn

HIDDEN, FEED_FORWARD, KEYS, LAYERS, VOCABULARY = 4096, 14336, 1024, 32, 128256
TOKENS = 128  # that generate() writes


@torch.no_grad()
def linear_layers() -> list[dict]:
    """A step through all linear layers, one after the other; what is between them, as attention, is left out."""
    # N and K of q, k, v, o, gate, up, down.
    of_hidden = [(n, HIDDEN) for n in (HIDDEN, KEYS, KEYS, HIDDEN, FEED_FORWARD, FEED_FORWARD)]
    shapes = [*of_hidden, (HIDDEN, FEED_FORWARD)] * LAYERS
    with torch.device("cuda"):
        model = nn.ModuleList(nn.Linear(k, n, bias=False) for n, k in shapes)
        xs = {batch: {k: torch.randn(batch, k) for k in (HIDDEN, FEED_FORWARD)} for batch in (1, 16)}
    for weight in model.parameters():
        weight.normal_()

    def step(batch: int) -> None:
        for layer, (_, k) in zip(model, shapes, strict=True):
            layer(xs[batch][k])

    def measure() -> tuple:
        return [clock.gpu([partial(step, batch)]).median_us / 1e3 for batch in xs], model[0](xs[16][HIDDEN]).float()

    before, true = measure()
    replace_linear_layers(model)
    after, found = measure()
    rows = []
    for batch, bf16, int4 in zip(xs, before, after, strict=True):
        rows.append({"what": "linear layers", "batch": batch, "bf16_ms": bf16, "int4_ms": int4, "ratio": int4 / bf16})
        rows[-1]["tokens_per_s"] = [round(1e3 * batch / ms) for ms in (bf16, int4)]
    # By rounding its weight to 4 bits, a layer's result changes by this part of its norm.
    return [*rows, {"what": "error of a layer", "relative": ((found - true).norm() / true.norm()).item()}]


def generate() -> list[dict]:
    """Tokens per second of transformers' generate() with a static cache: it compiles the model, with CUDA graphs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": VOCABULARY}
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=4096)).eval()
        prompt = torch.randint(0, VOCABULARY, (1, 16))
    how = {"do_sample": False, "cache_implementation": "static", "attention_mask": torch.ones_like(prompt)}
    how |= {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "pad_token_id": 0}
    rows = []
    for name in ("bf16", "int4"):
        if name == "int4":
            replace_linear_layers(model, skip=["lm_head"])
            torch.compiler.reset()
        for _ in range(3):  # the first ones compile and capture
            start = time.perf_counter()
            model.generate(prompt, **how).tolist()  # a list waits for the GPU
            seconds = time.perf_counter() - start
        rows.append({"what": "generate", "weights": name, "tokens": TOKENS, "tokens_per_s": TOKENS / seconds})
    return rows


def main() -> None:
    parser = lesson.options(__doc__)
    parser.add_argument("--generate", action="store_true", help="also with transformers' model")
    args = parser.parse_args()
    torch.set_default_dtype(torch.bfloat16)
    content = lesson.report(args, is_ready, lambda _: linear_layers() + (generate() if args.generate else []))
    print(*content["results"], sep="\n")


if __name__ == "__main__":
    main()
