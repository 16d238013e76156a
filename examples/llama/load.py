"""Weights for a Llama: from a folder that transformers has saved, or random; as they are, or rounded to 4 bits.

They arrive one after the other: only the weights of one product are on the device twice, while they are joined.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from llama import Config
from torch import Tensor, nn

from int4_linear import Int4Linear, quantize  # isort: skip  (llama.py makes the lessons importable)

ROWS = 1024  # of a matrix that are rounded at a time
Read = Callable[[str, tuple], Tensor]  # a tensor by its name; its shape is known


def read_config(folder: Path) -> Config:
    """From config.json; ValueError for a model that llama.py does not compute."""
    found = json.loads((folder / "config.json").read_text())
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    kind, ends = rope.get("rope_type", rope.get("type")), found.get("eos_token_id")
    heads = found.get("num_attention_heads") or 1  # other families have other names
    found["head_dim"] = found.get("head_dim") or found.get("hidden_size", 0) // heads
    for what, value, expected in (
        ("architecture", (found.get("architectures") or [None])[0], ("LlamaForCausalLM", "MistralForCausalLM")),
        ("sliding_window", found.get("sliding_window"), (None,)),
        ("quantization_config", found.get("quantization_config"), (None,)),
        ("hidden_act", found.get("hidden_act", "silu"), ("silu",)),
        ("attention_bias", found.get("attention_bias", False), (False,)),
        ("mlp_bias", found.get("mlp_bias", False), (False,)),
        ("rope_type", kind, ("default", "llama3", None)),
        ("head_dim", found["head_dim"], (64, 128)),
    ):
        if value not in expected:
            raise ValueError(f"{folder}: {what} is {value}, expected {' or '.join(map(str, expected))}")
    found["rope_scaling"] = rope if kind == "llama3" else None
    found["rope_theta"] = rope.get("rope_theta") or found.get("rope_theta") or 10000.0
    found["num_key_value_heads"] = found.get("num_key_value_heads") or heads
    found["eos_token_id"] = tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)
    return Config(**{field.name: found[field.name] for field in fields(Config) if field.name in found})


def checkpoint(folder: Path) -> Read:
    """Of all *.safetensors in the folder. Their headers say which tensors they have."""
    from safetensors import safe_open

    files = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
    owners = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def read(name: str, shape: tuple) -> Tensor:
        if name not in owners:
            raise ValueError(f"{folder}: there is no tensor {name}")
        if (found := tuple(owners[name].get_slice(name).get_shape())) != tuple(shape):
            raise ValueError(f"{folder}: {name} has shape {list(found)}, expected {list(shape)}")
        return owners[name].get_tensor(name)

    return read


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
        return round_to_int4(weight, is_gated) if self.is_int4 else as_linear(weight)

    def last(self, config: Config, embedding: Tensor) -> nn.Module:
        """The layer that gives a logit for each token; it may share the embedding's weight."""
        is_tied = config.tie_word_embeddings
        weight = embedding if is_tied else self.tensor("lm_head.weight", *embedding.shape)
        return round_to_int4(weight) if self.is_last_int4 else as_linear(weight)


def as_linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer


def round_to_int4(weight: Tensor, is_gated: bool = False) -> Int4Linear:
    """Some rows at a time: rounding takes several times their memory."""
    layer = Int4Linear.cat([Int4Linear(*quantize(rows)) for rows in weight.split(ROWS)])
    return Int4Linear(layer.packed, layer.scale, layer.zero, gated=is_gated)
