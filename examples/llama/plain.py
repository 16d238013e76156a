"""The same model by torch's own functions: what ours is checked against, and what it is compared with."""

import torch
import torch.nn.functional as F
from llama import Cache, LayerCache, Llama, Norm, add_rms_norm
from torch import Tensor


class TorchLayerCache(LayerCache):
    """Attention as one writes it for a CUDA graph: over the whole capacity, with a mask."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tokens, device = q.shape[2], q.device
        positions = self.lengths[:, None] + torch.arange(tokens, device=device)  # [batch, tokens]
        cos, sin = (x[positions][:, None].repeat(1, 1, 1, 2) for x in (self.cos, self.sin))
        q, k = (self.rotate(x, cos, sin) for x in (q, k))
        if tokens > 1:  # the prompt of an empty row
            self.keys[:, :, :tokens], self.values[:, :, :tokens] = k, v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        rows = torch.arange(len(q), device=device)
        self.keys[rows, :, self.lengths], self.values[rows, :, self.lengths] = k[:, :, 0], v[:, :, 0]
        mask = torch.arange(self.keys.shape[2], device=device) < self.lengths_after[:, None, None, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, mask, enable_gqa=True)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return (x * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


class TorchCache(Cache):
    of_layer = TorchLayerCache


def set_norm(model: Llama, function=add_rms_norm.reference, is_shared: bool = False) -> Llama:
    for module in model.modules():
        if isinstance(module, Norm):
            module.function, module.is_shared = function, is_shared
    return model
