"""The same model by torch's own functions: what ours is checked against, and what it is compared with."""

import torch
import torch.nn.functional as F
from llama import Cache, LayerCache, Llama, Norm, add_rms_norm
from torch import Tensor, nn


class TorchLayerCache(LayerCache):
    """Attention as one writes it for a CUDA graph: over the whole capacity, with a mask."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tokens, device = q.shape[2], q.device
        positions = self.lengths[:, None] + torch.arange(tokens, device=device)  # [batch, tokens]
        cos, sin = (x[positions][:, None].repeat(1, 1, 1, 2) for x in (self.cos, self.sin))
        q, k = (self.rotate(x, cos, sin) for x in (q, k))
        if tokens > 1:  # the prompt of an empty row
            self.keys[:, :, :tokens], self.values[:, :, :tokens] = k, v
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            rows = torch.arange(len(q), device=device)
            self.keys[rows, :, self.lengths], self.values[rows, :, self.lengths] = k[:, :, 0], v[:, :, 0]
            mask = torch.arange(self.keys.shape[2], device=device) < self.lengths_after[:, None, None, None]
            out = F.scaled_dot_product_attention(q, self.keys, self.values, mask, enable_gqa=True)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return (x * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


class TorchCache(Cache):
    of_layer = TorchLayerCache


class Apart(nn.ModuleList):
    """q, k and v, each by a layer of its own."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [linear(x) for linear in self]


class GateUp(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = self
        return F.silu(gate(x)) * up(x)


def take_apart(model: Llama) -> None:
    """Layers as they are in a checkpoint, on the same memory: for q, k, v, gate and up one each. Without bias."""

    def parts(linear: nn.Linear, sizes: list[int]) -> list[nn.Linear]:
        layers = [nn.Linear(linear.in_features, n, bias=False, device="meta") for n in sizes]
        for layer, rows in zip(layers, linear.weight.split(sizes), strict=True):
            layer.weight = nn.Parameter(rows, requires_grad=False)
        return layers

    for layer in model.layers:
        layer.qkv = Apart(parts(layer.qkv.linear, layer.qkv.sizes))
        layer.gate_up = GateUp(parts(layer.gate_up, [model.config.intermediate_size] * 2))


def set_norm(model: Llama, function=add_rms_norm.reference) -> None:
    for module in model.modules():
        if isinstance(module, Norm):
            module.function = function
