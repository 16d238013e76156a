"""Weights for a Llama: from a folder that transformers has saved, or random; as they are, or rounded to 4 bits.

They arrive one after the other: only the weights of one product are on the device twice, while they are joined.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import torch
from llama import Config
from torch import Tensor, nn

from int4_linear import Int4Linear, quantize  # isort: skip  (llama.py makes the lessons importable)

ROWS = 1024  # of a matrix that are rounded at a time
FACTORS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # of Llama 3's rope
Read = Callable[[str, tuple], Tensor]  # a tensor by its name; its shape is known


def read_config(folder: Path) -> Config:
    """From config.json; ValueError for a model that llama.py does not compute."""
    found = json.loads((folder / "config.json").read_text())
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    kind, ends = rope.get("rope_type", rope.get("type")), found.get("eos_token_id")
    heads = found.get("num_attention_heads") or 1  # other families have other names
    found["head_dim"] = found.get("head_dim") or (found.get("hidden_size") or 0) // heads
    key_heads = found["num_key_value_heads"] = found.get("num_key_value_heads") or heads
    lost = [field.name for field in fields(Config) if field.default is MISSING and found.get(field.name) is None]
    lost += [name for name in FACTORS if kind == "llama3" and not rope.get(name)]
    for what, value, expected in (
        ("architecture", (found.get("architectures") or [None])[0], ("LlamaForCausalLM", "MistralForCausalLM")),
        ("the list of missing keys", ", ".join(lost) or "empty", ("empty",)),
        ("sliding_window", found.get("sliding_window"), (None,)),
        ("quantization_config", found.get("quantization_config"), (None,)),
        ("hidden_act", found.get("hidden_act", "silu"), ("silu",)),
        ("attention_bias", found.get("attention_bias", False), (False,)),
        ("mlp_bias", found.get("mlp_bias", False), (False,)),
        ("rope_type", kind, ("default", "llama3", None)),
        ("partial_rotary_factor", rope.get("partial_rotary_factor") or found.get("partial_rotary_factor") or 1, (1,)),
        ("head_dim", found["head_dim"], (64, 128)),
    ):
        if value not in expected:
            raise ValueError(f"{folder}: {what} is {value}, expected {' or '.join(map(str, expected))}")
    if heads % key_heads or heads > 16 * key_heads:
        raise ValueError(f"{folder}: {heads} heads and {key_heads} key heads, expected 1 to 16 heads for each key head")
    found["rope_scaling"] = rope if kind == "llama3" else None
    found["rope_theta"] = rope.get("rope_theta") or found.get("rope_theta") or 10000.0
    found["eos_token_id"] = tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)
    return Config(**{field.name: found[field.name] for field in fields(Config) if field.name in found})


class Checkpoint:
    """A Read of all *.safetensors in a folder. Their headers say which tensors they have."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder, self.owners = folder, {}
        for file in sorted(folder.glob("*.safetensors")):
            try:
                opened = safe_open(file, framework="pt")
            except SafetensorError as error:
                raise ValueError(f"{file} is damaged: {error}: copy it again") from None
            self.owners |= dict.fromkeys(opened.keys(), opened)
        self.unread = {*self.owners}

    def __call__(self, name: str, shape: tuple) -> Tensor:
        if name not in self.owners:
            raise ValueError(f"{self.folder}: there is no tensor {name}")
        if (found := self.owners[name].get_slice(name).get_shape()) != [*shape]:
            raise ValueError(f"{self.folder}: {name} has shape {found}, expected {[*shape]}")
        self.unread.discard(name)
        return self.owners[name].get_tensor(name)

    def check_unread(self) -> None:
        """A layer's tensor that was not read belongs to another model. (Old files have frequencies of the rotation.)"""
        for name in sorted(self.unread):
            if name.startswith("model.layers.") and not name.endswith("rotary_emb.inv_freq"):
                raise ValueError(f"{self.folder}: {name} has no place in the model that config.json describes")


@dataclass
class Loader:
    """Makes the layers. is_int4: linear ones have 4 bits; is_last_int4: the last one as well."""

    device: torch.device
    dtype: torch.dtype
    is_int4: bool = False
    is_last_int4: bool = False
    is_apart: bool = False  # all layers as in the checkpoint
    read: Read | None = None  # else a tensor is random: it depends on its name and the seed
    seed: int = 0

    def tensor(self, name: str, *shape: int) -> Tensor:
        if self.read:
            return self.read(name, shape).to(self.device, self.dtype)
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        x = torch.randn(shape, generator=generator, dtype=self.dtype, device=self.device)
        return x * shape[-1] ** -0.5

    def linears(self, names: list[str], sizes: list[int], width: int, is_gated: bool = False) -> nn.ModuleList:
        """One linear layer that stands for several; or each of them."""
        if not self.is_apart:
            return nn.ModuleList([self.linear(names, sizes, width, is_gated)])
        return nn.ModuleList(self.linear([name], [rows], width) for name, rows in zip(names, sizes, strict=True))

    def linear(self, names: list[str], sizes: list[int], width: int, is_gated: bool = False) -> nn.Module:
        """Layers of the checkpoint as one, which takes width columns. sizes: the rows of each."""
        weights = [self.tensor(f"{name}.weight", rows, width) for name, rows in zip(names, sizes, strict=True)]
        is_gated = is_gated and self.is_int4  # an Int4Linear that computes silu(gate) * up: their rows alternate
        weight = torch.stack(weights, 1).flatten(0, 1) if is_gated else torch.cat(weights)
        del weights
        return round_to_int4("+".join(names), weight, is_gated) if self.is_int4 else as_linear(weight)

    def last(self, config: Config, embedding: Tensor) -> nn.Module:
        """The layer that gives a logit for each token; it may share the embedding's weight."""
        is_tied = config.tie_word_embeddings
        weight = embedding if is_tied else self.tensor("lm_head.weight", *embedding.shape)
        return round_to_int4("lm_head", weight) if self.is_last_int4 else as_linear(weight)


def as_linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer


def round_to_int4(name: str, weight: Tensor, is_gated: bool = False) -> Int4Linear:
    """Some rows at a time: rounding takes several times their memory."""
    if any(size % 64 for size in weight.shape):
        raise ValueError(f"{name}.weight is {[*weight.shape]}: 4 bits need multiples of 64, bf16 does not")
    layer = Int4Linear.cat([Int4Linear(*quantize(rows)) for rows in weight.split(ROWS)])
    return Int4Linear(layer.packed, layer.scale, layer.zero, gated=is_gated)
