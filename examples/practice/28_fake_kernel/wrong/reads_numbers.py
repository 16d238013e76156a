# A cheat: computes the result instead of describing it. A fake tensor has no numbers.
# check says: fake:
import torch
from torch import Tensor


@torch.library.custom_op("practice::pair_sums", mutates_args=())
def pair_sums(x: Tensor, y: Tensor) -> Tensor:
    """result[i, j] = x[i] + y[j]. The elements of a column lie next to each other."""
    result = torch.empty(len(y), len(x), dtype=x.dtype, device=x.device).t()
    torch.add(x[:, None], y, out=result)
    return result


@pair_sums.register_fake
def pair_sums_fake(x, y):
    return torch.from_numpy(x.numpy()[:, None] + y.numpy())
