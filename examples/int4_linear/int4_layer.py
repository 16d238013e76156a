"""The layer: nn.Linear with a weight in 4-bit codes; several layers of one input as one."""

from collections.abc import Sequence

import torch
from int4_packing import pack, quantize
from torch import Tensor, nn

OPS = torch.ops.int4_linear  # int4_linear.py builds them
FEW_ROWS = 8  # for so many before_norm() and after_norm() need no kernel for the norm


class Int4Linear(nn.Module):
    """nn.Linear with a weight in 4-bit codes. The codes are buffers: saved, loaded and moved, but not trained.

    The bias is trained if it requires a gradient. `gated` is not saved: load codes into a layer made with the same.
    """

    def __init__(
        self, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None, gated: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = packed.shape[1] * 64, packed.shape[0] * 64 // (2 if gated else 1)
        self.gated = gated
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> "Int4Linear":
        """Round the weight of a float16 or bfloat16 layer; build() may come later, before the first call."""
        return cls(*quantize(linear.weight), linear.bias).train(linear.training)

    @classmethod
    def cat(cls, layers: Sequence["Int4Linear"], gated: bool = False) -> "Int4Linear":
        """Several layers of one x as one: y is theirs, one after the other. So q, k and v of a model are one call.

        If gated, two layers of one size, after build(): y is silu(first(x)) * second(x), as for a model's gate and up.
        """
        found = {(each.in_features, each.scale.dtype, each.scale.device, each.gated) for each in layers}
        if len(found) != 1 or layers[0].gated:
            raise ValueError(f"int4_linear: layers must be alike and not gated, found {list(found)}")
        sizes = [layer.out_features for layer in layers]
        if gated and sizes != sizes[:1] * 2:
            raise ValueError(f"int4_linear: gated needs two layers with as many out_features, found {sizes}")
        bias = None
        if given := [layer.bias for layer in layers if layer.bias is not None]:
            zeros = layers[0].scale.new_zeros
            biases = [zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
            bias = torch.stack(biases, 1).flatten() if gated else torch.cat(biases)
            bias = bias.detach().requires_grad_(any(each.requires_grad for each in given))  # also under no_grad
        if not gated:
            weights = zip(*((layer.packed, layer.scale, layer.zero) for layer in layers), strict=True)
            parts = [torch.cat(each, axis) for axis, each in zip((0, 1, 1), weights, strict=True)]
        else:  # the rows alternate: a thread of the kernel has two neighbours, and needs no other thread for its result
            one, none = torch.ones_like(layers[0].scale), torch.zeros_like(layers[0].zero)
            gates = [(OPS.dequantize(each.packed, one, none), each.scale.t(), each.zero.t()) for each in layers]
            parts = pack(*(torch.stack(pair, 1).flatten(0, 1) for pair in zip(*gates, strict=True)))
        return cls(*parts, bias, gated).train(layers[0].training)

    def forward(self, x: Tensor) -> Tensor:
        return OPS.int4_linear(x, self.packed, self.scale, self.zero, self.bias, self.gated)

    def before_norm(self, x: Tensor, residual: Tensor, norm_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """linear_before_norm() of int4_linear.py. No gradient."""
        weight = self.packed, self.scale, self.zero, self.bias
        return OPS.linear_before_norm(x, *weight, residual, norm_weight)

    def after_norm(self, weighted: Tensor, squares: Tensor, eps: float) -> Tensor:
        """linear_after_norm() of int4_linear.py. No gradient."""
        return OPS.linear_after_norm(weighted, squares, eps, self.packed, self.scale, self.zero, self.bias, self.gated)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return sizes + ", gated=True" * self.gated
