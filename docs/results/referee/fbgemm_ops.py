"""fbgemm-gpu-cpu 1.9.0: pip install fbgemm-gpu-cpu."""

import fbgemm_gpu  # noqa: F401 (registers the operators)
import torch

from lab.referee import Operator


def padded_by_torch(values, offsets, longest):
    """Rows offsets[i] to offsets[i + 1] of values become row i of the result, with zeros up to `longest`."""
    lengths = offsets.diff()
    place = torch.arange(longest, device=values.device)
    row = (offsets[:-1, None] + place).clamp(max=values.shape[0] - 1)
    return torch.where((place < lengths[:, None])[:, :, None], values[row], 0)


padded = Operator(
    "fbgemm::jagged_to_padded_dense",
    call=lambda values, offsets, longest: torch.ops.fbgemm.jagged_to_padded_dense(values, [offsets], [longest]),
    reference=padded_by_torch,
    inputs=lambda device: (torch.randn(7, 4, device=device), torch.tensor([0, 2, 2, 7], device=device), 5),
    gradients=(0,),
    sizes={"columns": [(0, 1)]},
)


def products_by_torch(v, a, offsets):
    """For each group of rows of a: v[i] @ a[offsets[i] : offsets[i + 1]]."""
    group = torch.repeat_interleave(torch.arange(len(v), device=v.device), offsets.diff())
    place = torch.arange(len(a), device=v.device) - offsets[group]
    products = v[group, place][:, None] * a
    return torch.zeros(len(v), a.shape[1], dtype=a.dtype, device=a.device).index_add(0, group, products)


products = Operator(
    "fbgemm::batched_dense_vec_jagged_2d_mul",
    reference=products_by_torch,
    inputs=lambda device: (
        torch.randn(3, 5, device=device),
        torch.randn(7, 4, device=device),
        torch.tensor([0, 2, 2, 7], device=device),
    ),
    gradients=(0, 1),
    sizes={"columns": [(1, 1)]},
)


def segment_sums_by_torch(batch, ends, values):
    """Each segment has batch values per row: sums of values[batch * ends[i] : batch * ends[i + 1]]."""
    segment = torch.repeat_interleave(torch.arange(len(ends) - 1, device=values.device), ends.diff() * batch)
    return torch.zeros(len(ends) - 1, dtype=values.dtype, device=values.device).index_add(0, segment, values)


segment_sums = Operator(
    "fbgemm::segment_sum_csr",
    reference=segment_sums_by_torch,
    inputs=lambda device: (2, torch.tensor([0, 1, 3, 4], device=device), torch.randn(8, device=device)),
    sizes={},
)
