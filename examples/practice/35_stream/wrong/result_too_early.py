# Fast, but wrong: the caller reads y before it is computed.
# check says: current_stream:
import torch
from torch import Tensor

side: list[torch.cuda.Stream] = []  # a stream of our own, made by the first call


@torch.library.custom_op("practice::line", mutates_args=(), device_types="cuda")
def line(x: Tensor) -> Tensor:
    """2 x + 1, computed on a stream of our own"""
    if not side:
        side.append(torch.cuda.Stream())
    y = torch.empty_like(x)
    side[0].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side[0]):
        torch.add(2 * x, 1, out=y)
    return y
