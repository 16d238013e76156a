"""One token of an 8-billion-parameter Llama (random weights) with bf16 and with 4-bit linear layers. Needs a GPU.

python3 examples/5_int4_linear/model.py               # its linear layers, in a CUDA graph
python3 examples/5_int4_linear/model.py --generate    # also transformers' LlamaForCausalLM: generate(), minutes
"""

import time

import torch
from bench import clock, files, options, prepare, save
from int4_linear import Int4Linear
from torch import Tensor, nn

HIDDEN, FEED_FORWARD, KEYS, LAYERS, VOCABULARY = 4096, 14336, 1024, 32, 128256


class Layer(nn.Module):
    """The linear layers of one Llama layer, in their order; attention and norms are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in "qo")
        self.k, self.v = (nn.Linear(HIDDEN, KEYS, bias=False) for _ in "kv")
        self.gate, self.up = (nn.Linear(HIDDEN, FEED_FORWARD, bias=False) for _ in "gu")
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, _, _ = self.q(x), self.k(x), self.v(x)
        x = self.o(q)
        return self.down(self.gate(x) * self.up(x))


def replace_linear_layers(model: nn.Module) -> None:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name != "lm_head":
            model.set_submodule(name, Int4Linear.from_linear(module))


@torch.no_grad()
def time_step(model: nn.Module, batch: int) -> float:
    """Milliseconds of one step, from replays of a CUDA graph."""
    x = torch.randn(batch, HIDDEN, device="cuda")
    return clock.gpu([lambda: model(x)]).median_us / 1e3


@torch.no_grad()
def linear_layers(batches: list[int]) -> list[dict]:
    with torch.device("cuda"):
        model, x = nn.Sequential(*(Layer() for _ in range(LAYERS))), torch.randn(16, HIDDEN)
    for weight in model.parameters():
        weight.normal_(std=weight.shape[1] ** -0.5)  # keeps the size of what passes through
    before, true = [time_step(model, batch) for batch in batches], model[0].q(x).float()
    replace_linear_layers(model)
    after, found = [time_step(model, batch) for batch in batches], model[0].q(x).float()
    rows = []
    for batch, bf16, int4 in zip(batches, before, after, strict=True):
        rows.append({"what": "linear layers", "batch": batch, "bf16_ms": bf16, "int4_ms": int4, "ratio": int4 / bf16})
        rows[-1]["tokens_per_s"] = [round(1e3 * batch / ms) for ms in (bf16, int4)]
    # By rounding its weight to 4 bits, a layer's result changes by this part of its norm.
    return [*rows, {"what": "error of a layer", "relative": ((found - true).norm() / true.norm()).item()}]


def generate(tokens: int, device: str = "cuda") -> list[dict]:
    """Tokens per second of transformers' generate() with a static cache: it compiles the model, with CUDA graphs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": VOCABULARY}
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=4096)).eval()
    prompt = torch.randint(0, VOCABULARY, (1, 16), device=device)
    how = {"do_sample": False, "cache_implementation": "static", "attention_mask": torch.ones_like(prompt)}
    how |= {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
    rows = []
    for name in ("bf16", "int4"):
        if name == "int4":
            replace_linear_layers(model)
            torch.compiler.reset()
        times = []
        for _ in range(3):  # the first ones compile and capture
            start = time.perf_counter()
            model.generate(prompt, **how).tolist()  # a list waits for the GPU
            times.append(time.perf_counter() - start)
        rows.append({"what": "generate", "weights": name, "tokens": tokens, "tokens_per_s": tokens / times[-1]})
        rows[-1]["first_call_s"] = times[0]
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--generate", action="store_true", help="also with transformers' model")
    parser.add_argument("--tokens", type=int, default=128, help="that generate() writes")
    args = parser.parse_args()
    where = prepare()
    torch.set_default_dtype(torch.bfloat16)
    results = linear_layers([1, 16])
    torch.cuda.empty_cache()
    if args.generate:
        results += generate(args.tokens)
    print(files.to_json({"results": results}).decode())
    save(args.json, where, results)


if __name__ == "__main__":
    main()
