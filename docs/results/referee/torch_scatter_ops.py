"""torch_scatter 2.1.2: FORCE_ONLY_CPU=1 pip install --no-build-isolation torch_scatter."""

import torch
import torch_scatter  # noqa: F401 (registers the operators)

from lab.referee import Operator


def segments_by_torch(x, ends):
    """Row i of the result is the largest of the rows ends[i] to ends[i + 1] of x, and which one it is."""
    found = [x[start:end].max(0) for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    starts = ends[:-1, None]
    return torch.stack([each.values for each in found]), torch.stack([each.indices for each in found]) + starts


segment_max = Operator(
    "torch_scatter::segment_max_csr",
    call=lambda x, ends: torch.ops.torch_scatter.segment_max_csr(x, ends, None),
    reference=segments_by_torch,
    inputs=lambda device: (torch.randn(6, 3, device=device), torch.tensor([0, 2, 3, 6], device=device)),
    gradients=(0,),
    sizes={"columns": [(0, 1)]},
)


def sums_by_torch(x, ends):
    number = torch.repeat_interleave(torch.arange(len(ends) - 1, device=x.device), ends.diff())
    return torch.zeros(len(ends) - 1, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, number, x)


segment_sum = Operator(
    "torch_scatter::segment_sum_csr",
    call=lambda x, ends: torch.ops.torch_scatter.segment_sum_csr(x, ends, None),
    reference=sums_by_torch,
    inputs=lambda device: (torch.randn(6, 3, device=device), torch.tensor([0, 2, 3, 6], device=device)),
    gradients=(0,),
    sizes={"columns": [(0, 1)]},
)
