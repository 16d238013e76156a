"""DTensor: add2 is pointwise, so a result is sharded as its inputs are.

Registered when a DTensor can be there, not by `import add2`: torch.distributed.tensor takes a second to import.
"""

import sys

import torch

_registered = False


def register_if_needed() -> None:
    """Tell torch.distributed.tensor how add2 is sharded, if a program uses it; once."""
    global _registered
    if _registered or "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.add2.add2.default)
    def _(a, b) -> list:  # pairs of what the result can be, and what a and b must be for it
        placements = [Replicate(), *(Shard(dim) for dim in range(a.ndim))]
        return [([placement], [placement, placement]) for placement in placements]

    _registered = True
