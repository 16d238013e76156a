"""Weights for a Llama: from a folder that transformers has saved, or random; as they are, or rounded to 4 bits.

They arrive one after the other: only the weights of one product are on the device twice, while they are joined.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from llama import Config, int4_linear
from model_config import as_object, read_json
from torch import Tensor, nn

ROWS = 1024  # of a matrix that are rounded at a time
Read = Callable[[str, tuple], Tensor]  # a tensor by its name; its shape is known


class Checkpoint:
    """A Read of the *.safetensors in a folder, with an index of those that it names. Their headers list tensors."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder, self.owners = folder, {}
        files = inside = {*folder.glob("*.safetensors")}
        if (index := folder / "model.safetensors.index.json").exists():
            names = as_object(f"{index}: weight_map", read_json(index).get("weight_map")).values()
            files = {folder / str(name) for name in names}
            if lost := files - inside:
                raise ValueError(f"{index} names {str(min(lost))!r}, which is not in its folder: copy it again")
        for file in sorted(files):
            try:
                opened = safe_open(file, framework="pt")
            except SafetensorError as error:
                raise ValueError(f"{file} is damaged: {error}: copy it again") from None
            if twice := self.owners.keys() & opened.keys():
                raise ValueError(f"{file} has {min(twice)}, and so has another file: remove the wrong one")
            self.owners |= dict.fromkeys(opened.keys(), opened)
        self.unread = {*self.owners}

    def __call__(self, name: str, shape: tuple) -> Tensor:
        from safetensors import SafetensorError

        if name not in self.owners:
            raise ValueError(f"{self.folder}: there is no tensor {name}")
        if (found := self.owners[name].get_slice(name).get_shape()) != [*shape]:
            raise ValueError(f"{self.folder}: {name} has shape {found}, expected {[*shape]}")
        self.unread.discard(name)
        try:
            tensor = self.owners[name].get_tensor(name)
        except SafetensorError as error:  # a dtype that torch does not have
            raise ValueError(f"{self.folder}: {name}: {error}") from None
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise ValueError(f"{self.folder}: {name} is {tensor.dtype}, expected float16, bfloat16, float32 or float64")
        return tensor

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
    read: Read | None = None  # else a tensor is random: it depends on its name

    def tensor(self, name: str, *shape: int) -> Tensor:
        if self.read:
            return self.read(name, shape).to(self.device, self.dtype)
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
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
        weight = embedding if config.tie_word_embeddings else self.tensor("lm_head.weight", *embedding.shape)
        return round_to_int4("lm_head", weight) if self.is_last_int4 else as_linear(weight)


def as_linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer


def round_to_int4(name: str, weight: Tensor, is_gated: bool = False) -> nn.Module:
    """Some rows at a time: rounding takes several times their memory."""
    if any(size % 64 for size in weight.shape):
        raise ValueError(f"{name}.weight is {[*weight.shape]}: 4 bits need multiples of 64, bf16 does not")
    parts = [int4_linear.Int4Linear(*int4_linear.quantize(rows)) for rows in weight.split(ROWS)]
    layer = int4_linear.Int4Linear.cat(parts)
    return int4_linear.Int4Linear(layer.packed, layer.scale, layer.zero, gated=is_gated)
