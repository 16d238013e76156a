"""Weights for a Llama: from a folder that transformers has saved, or random; as they are, or rounded to 4 bits.

They arrive one layer after the other, and no matrix is on the device twice.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from llama import Config
from torch import Tensor, nn

from int4_linear import Int4Linear, quantize  # isort: skip  (llama.py makes the lessons importable)

ROWS = 1024  # of a matrix that are rounded at a time, which takes several times their memory
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
    """Of the folder's *.safetensors, one file or several with an index."""
    from safetensors import safe_open

    index, names = folder / "model.safetensors.index.json", {"model.safetensors"}
    if index.exists():
        names = {*json.loads(index.read_text())["weight_map"].values()}
    files = [safe_open(folder / name, framework="pt") for name in sorted(names)]
    owners = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def read(name: str, shape: tuple) -> Tensor:
        if name not in owners:
            raise ValueError(f"{folder}: there is no tensor {name}")
        if (found := tuple(owners[name].get_slice(name).get_shape())) != tuple(shape):
            raise ValueError(f"{folder}: {name} has shape {list(found)}, expected {list(shape)}")
        return owners[name].get_tensor(name)

    return read


def random_weights(device: torch.device, dtype: torch.dtype, seed: int = 0) -> Read:
    """A tensor depends on its name and the seed."""

    def read(name: str, shape: tuple) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        return torch.randn(shape, generator=generator, dtype=dtype, device=device) * shape[-1] ** -0.5

    return read


@dataclass
class Loader:
    """is_int4: linear layers have 4 bits; is_last_int4: the last one as well."""

    read: Read
    device: torch.device
    dtype: torch.dtype
    is_int4: bool = False
    is_last_int4: bool = False
    is_apart: bool = False  # all layers as in the checkpoint

    def tensor(self, name: str, *shape: int) -> Tensor:
        return self.read(name, shape).to(self.device, self.dtype)

    def linears(self, parts: dict[str, int], *how, **more) -> nn.ModuleList:
        each = [{name: rows} for name, rows in parts.items()] if self.is_apart else [parts]
        return nn.ModuleList(self.linear(part, *how, **more) for part in each)

    def linear(self, parts: dict[str, int], width: int, has_bias: bool, is_gated: bool = False) -> nn.Module:
        """Several layers of the checkpoint as one, which takes width columns. parts: the rows of each, by its name."""
        biases = [self.tensor(f"{name}.bias", rows) for name, rows in parts.items()] if has_bias else []
        weights = [self.read(f"{name}.weight", (rows, width)) for name, rows in parts.items()]
        if self.is_int4:
            return self.round(weights, biases, is_gated)
        layer = nn.Linear(1, 1, has_bias, device="meta")
        layer.weight = nn.Parameter(torch.cat([x.to(self.device, self.dtype) for x in weights]))
        layer.bias = nn.Parameter(torch.cat(biases)) if has_bias else None
        return layer

    def round(self, weights: list[Tensor], biases: list[Tensor], is_gated: bool = False) -> nn.Module:
        """To 4 bits, some rows at a time. In a gated layer the rows of gate and up alternate."""

        def stack(tensors) -> Tensor:
            on_device = [x.to(self.device, self.dtype) for x in tensors]
            return torch.stack(on_device, 1).flatten(0, 1) if is_gated else torch.cat(on_device)

        split = [weight.split(ROWS) for weight in weights]
        pieces = zip(*split, strict=True) if is_gated else ([rows] for weight in split for rows in weight)
        whole = Int4Linear.cat([Int4Linear(*quantize(stack(piece))) for piece in pieces])
        return Int4Linear(whole.packed, whole.scale, whole.zero, stack(biases) if biases else None, is_gated)

    def last(self, config: Config, embedding: nn.Parameter) -> nn.Module:
        """The layer that gives a logit for each token; it may share the embedding's weight."""
        if not config.tie_word_embeddings:
            loader = replace(self, is_int4=self.is_last_int4)
            return loader.linear({"lm_head": config.vocab_size}, config.hidden_size, False)
        if self.is_last_int4:
            return self.round([embedding.detach()], [])
        layer = nn.Linear(1, 1, bias=False, device="meta")
        layer.weight = embedding
        return layer
