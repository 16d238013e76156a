"""A Llama from the operators of three lessons. docs/18_llama.md explains it.

Layer shows what a token goes through, Cache keeps keys and values, model_config.py reads what a model is, load.py
finds the weights, generate.py writes text and run.py is the program.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

for _folder in (".", "examples/add_rms_norm", "examples/int4_linear", "examples/decode_attention"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / _folder))  # before packages of the same name

import add_rms_norm  # noqa: E402
import decode_attention  # noqa: E402
import int4_linear  # noqa: E402
from common import operators  # noqa: E402, F401
from int4_linear import Int4Linear  # noqa: E402


def build() -> list[str]:
    """Compile and load the operators of the three lessons. Returns the libraries' paths."""
    return [lesson.build() for lesson in (add_rms_norm, int4_linear, decode_attention)]


@dataclass(frozen=True)
class Config:
    """What a model is; names and defaults are those of transformers' config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None  # Llama 3.1's, if any
    tie_word_embeddings: bool = False  # the last layer has the embedding's weight
    eos_token_id: tuple[int, ...] = ()  # tokens that end a text

    def check_length(self, tokens: int) -> None:
        if tokens > self.max_position_embeddings:
            raise ValueError(f"{tokens} tokens: the model was made for {self.max_position_embeddings} at most")


def rotations(config: Config, positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin of the angle of each position and pair of columns: [positions, head_dim / 2]."""
    frequency = 1 / config.rope_theta ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
    if scaling := config.rope_scaling:  # slow rotations are stretched by a factor, fast ones stay, with a slope between
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / scaling["factor"])
    angles = torch.outer(torch.arange(positions).float(), frequency)
    return angles.cos(), angles.sin()


class LayerCache:
    """Attention of one layer over its cache: for one token of each row, or for the whole prompt of an empty row."""

    def __init__(self, tensors: list[Tensor], angles: tuple[Tensor, Tensor], counts: Tensor) -> None:
        self.keys, self.values, *self.scales = tensors
        self.cos, self.sin = angles
        self.lengths, self.lengths_after = counts  # without and with the new token

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[tokens of all rows, heads x d], slices of what one linear layer has left: no copy is made of them."""
        batch, _, _, d = self.keys.shape
        out = self.attend(*(x.view(batch, -1, x.shape[1] // d, d).transpose(1, 2) for x in (q, k, v)))
        return out.transpose(1, 2).flatten(2).flatten(0, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[batch, heads, tokens, d]."""
        cache = self.keys, self.values, *self.scales
        tokens = q.shape[2]
        if tokens == 1:
            return self.attend_one(*(x[:, :, 0] for x in (q, k, v)))[:, :, None]
        q = decode_attention.append(q, k, v, self.cos, self.sin, self.lengths, *cache)
        keys, values, *scales = (x[:, :, :tokens] for x in cache)
        if scales:
            keys, values = ((x * s[..., None]).to(q.dtype) for x, s in zip((keys, values), scales, strict=True))
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[batch, heads, d]: the new token of each row enters the cache, and is a part of what is attended to."""
        return decode_attention.step(q, k, v, self.cos, self.sin, self.lengths, self.keys, self.values, *self.scales)


class TwoKernels(LayerCache):
    """append() and attend() one after the other: for the ladder, and as a reference."""

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        one = (x[:, :, None] for x in (q, k, v))
        q = decode_attention.append(*one, self.cos, self.sin, self.lengths, self.keys, self.values, *self.scales)
        return decode_attention.attend(q[:, :, 0], self.keys, self.values, self.lengths_after, None, *self.scales)


class Cache:
    """Keys and values of all layers, for a batch of texts of up to capacity tokens. Lengths live on the device."""

    of_layer = LayerCache

    def __init__(self, config: Config, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        config.check_length(capacity)
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, capacity)
        self.tensors = [torch.zeros(*shape, config.head_dim, dtype=dtype, device=device) for _ in "kv"]
        if dtype == torch.int8:
            self.tensors += [torch.zeros(shape, device=device) for _ in "kv"]
        self.angles = tuple(x.to(device) for x in rotations(config, capacity))
        self.empty = torch.tensor([[0], [1]], dtype=torch.int32, device=device)
        self.counts = self.empty.repeat(1, batch)  # tokens of each row, without and with the new one

    def set_lengths(self, lengths: list[int]) -> None:
        self.counts.copy_(torch.tensor([lengths, [n + 1 for n in lengths]]))

    def layers(self, row: int | None = None) -> Iterator[LayerCache]:
        """For a step of all rows; or for the prompt of one row, which counts as empty."""
        tensors, counts = self.tensors, self.counts
        if row is not None:
            tensors, counts = [x[:, row : row + 1] for x in tensors], self.empty
        for of_layer in zip(*tensors, strict=True):
            yield self.of_layer(of_layer, self.angles, counts)


@dataclass
class Stream:
    """The residual stream on its way to a norm: the sum is x + delta. Or it is x, if the product before the norm has
    added it up already and left `ready`, which the product after the norm takes."""

    x: Tensor
    delta: Tensor | None = None
    ready: Sequence[Tensor] = ()

    def last_token(self) -> "Stream":
        return Stream(self.x[-1:], None if self.delta is None else self.delta[-1:], [x[-1:] for x in self.ready])


class Norm(nn.Module):
    """Adds the last layer's result to the residual stream, and normalizes the sum. Returns both.

    is_shared: for few rows, 4-bit products before and after it do its work, and it needs no kernel.
    """

    function = staticmethod(add_rms_norm.add_rms_norm)
    is_shared = True

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight), eps

    def forward(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(x, delta, self.weight, self.eps)

    def before(self, linear: nn.Module, y: Tensor, x: Tensor, layers: Sequence[nn.Module]) -> Stream:
        """The sum of x and linear(y), for this norm. layers: those that will follow it."""
        is_few = self.is_shared and len(x) <= int4_linear.FEW_ROWS and x.dtype == torch.bfloat16
        if is_few and len(layers) == 1 and isinstance(linear, Int4Linear) and isinstance(layers[0], Int4Linear):
            x, *ready = linear.before_norm(y, x, self.weight)
            return Stream(x, ready=ready)
        return Stream(x, linear(y))

    def after(self, layers: Sequence[nn.Module], stream: Stream) -> tuple[list[Tensor], Tensor]:
        """The result of each layer for the normalized sum; and the sum."""
        if stream.ready:
            return [layers[0].after_norm(*stream.ready, self.eps)], stream.x
        y, x = self(stream.x, stream.delta)
        return [layer(y) for layer in layers], x


def split(results: list[Tensor], sizes: list[int]) -> Sequence[Tensor]:
    """A result of each layer; of a single one, which stands for several, a slice for each size."""
    return results if len(results) > 1 else results[0].split(sizes, -1)


class Layer(nn.Module):
    """The sum x + delta is made where it is needed: in the next norm."""

    def __init__(self, config: Config, name: str, load) -> None:
        super().__init__()
        hidden, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        heads, key_heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.sizes, self.gate_sizes = [heads, key_heads, key_heads], [inner, inner]
        self.norm = Norm(load.tensor(f"{name}.input_layernorm.weight", hidden), eps)
        self.qkv = load.linears([f"{name}.self_attn.{x}_proj" for x in "qkv"], self.sizes, hidden)
        self.o = load.linear([f"{name}.self_attn.o_proj"], [hidden], heads)
        self.norm_2 = Norm(load.tensor(f"{name}.post_attention_layernorm.weight", hidden), eps)
        gate_up = [f"{name}.mlp.{x}_proj" for x in ("gate", "up")]
        self.gate_up = load.linears(gate_up, self.gate_sizes, hidden, is_gated=True)
        self.down = load.linear([f"{name}.mlp.down_proj"], [hidden], inner)

    def forward(self, stream: Stream, attend: Callable, next_norm: Norm, next_layers: Sequence[nn.Module]) -> Stream:
        qkv, x = self.norm.after(self.qkv, stream)
        stream = self.norm_2.before(self.o, attend(*split(qkv, self.sizes)), x, self.gate_up)
        gate_up, x = self.norm_2.after(self.gate_up, stream)
        if getattr(self.gate_up[0], "gated", False):  # a 4-bit layer that computes silu(gate) * up itself
            return next_norm.before(self.down, gate_up[0], x, next_layers)
        gate, up = split(gate_up, self.gate_sizes)
        return next_norm.before(self.down, F.silu(gate) * up, x, next_layers)


class Llama(nn.Module):
    """load: a Loader of load.py."""

    def __init__(self, config: Config, load) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(load.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size))
        self.last = load.last(config, self.embedding)
        self.norm = Norm(load.tensor("model.norm.weight", config.hidden_size), config.rms_norm_eps)
        self.register_buffer("zero", torch.zeros_like(self.embedding[:1]), persistent=False)
        numbers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(Layer(config, f"model.layers.{i}", load) for i in numbers)
        self.requires_grad_(False)

    def forward(self, tokens: Tensor, cache: Cache, row: int | None = None, is_every: bool = False) -> Tensor:
        """Logits after the new token of each row; or after the last token of the prompt of one row (or after each)."""
        x = F.embedding(tokens, self.embedding)
        stream = Stream(x, self.zero.expand_as(x))
        following = [(layer.norm, layer.qkv) for layer in self.layers[1:]] + [(self.norm, [self.last])]
        for layer, attend, (norm, layers) in zip(self.layers, cache.layers(row), following, strict=True):
            stream = layer(stream, attend, norm, layers)
        if row is not None and not is_every:
            stream = stream.last_token()
        return self.norm.after([self.last], stream)[0][0]
