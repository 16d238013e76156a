"""A weight as 4-bit codes with a scale and a zero for each group, in the order in which tensor cores want them."""

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 128  # columns that share a scale and a zero


def quantize(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round a weight [N, K] (float16 or bfloat16, N and K multiples of 64) to 4-bit codes: packed, scale, zero.

    128 columns of a row share a scale and a zero: weight = (code - zero) * scale, with codes from 0 to 15, rounded to
    nearest. The last group may have only 64. packed: int32 [N/64, K/64, 4, 32, 4], in the order in which tensor cores
    want it; scale: the weight's dtype, [groups, N]; zero: uint8 [groups, N]. On the weight's device; no gradient.
    Other sizes and dtypes: ValueError.
    """
    _check_size("weight", weight)
    if weight.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"int4_linear: weight is {weight.dtype}, expected float16 or bfloat16")
    n, k = weight.shape
    groups = F.pad(weight.detach().float(), (0, -k % GROUP)).view(n, -1, GROUP)
    # The largest and the smallest scale must be numbers of the dtype: 15 scales are finite, and one is not 0.
    limits = torch.finfo(weight.dtype)
    edge = limits.max * (1 - limits.eps)
    low, high = groups.amin(2).clamp(-edge, 0), groups.amax(2).clamp(0, edge)  # zero itself has a code
    if weight.device.type != "meta" and (low + high).isnan().any():
        raise ValueError("int4_linear: weight has a NaN, expected numbers")
    scale = (high / 15 - low / 15).clamp(min=limits.smallest_normal * limits.eps).to(weight.dtype)
    zero = (-low / scale).round().clamp(0, 15)
    most = (limits.max / scale.float()).floor()[..., None]  # so many scales are still finite
    codes = ((groups / scale[..., None]).round().clamp(-most, most) + zero[..., None]).clamp(0, 15)
    return pack(codes.view(n, -1)[:, :k], scale, zero)


def _check_size(name: str, matrix: Tensor) -> None:
    if matrix.dim() != 2 or matrix.shape[0] % 64 or matrix.shape[1] % 64 or not matrix.numel():
        raise ValueError(f"int4_linear: {name} is {list(matrix.shape)}, expected multiples of 64: [N, K]")


def pack(codes: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K], scale and zero [N, groups], of any origin, as int4_linear() wants them: see quantize().

    Codes and zeros are whole numbers from 0 to 15 of any dtype; else ValueError. In packed, row 16 a + 2 b + c and
    column 64 d + 16 e + 8 h + 2 t + j go to chunk d, tile a, lane 4 b + t, word e, as its code 4 j + 2 h + c: so a lane
    has its fragments of four products in a row, and 64 rows are one piece of memory.
    """
    _check_size("codes", codes)
    n, k = codes.shape  # below: a, b, c | d, e, h, t, j
    for name, affine in (("scale", scale), ("zero", zero)):
        if affine.shape != (n, -(-k // GROUP)):
            raise ValueError(f"int4_linear: {name} is {list(affine.shape)}, expected {[n, -(-k // GROUP)]}")
    for what, numbers in (("code", codes), ("zero", zero)):
        right = (numbers >= 0) & (numbers <= 15) & (numbers == numbers.to(torch.uint8))
        if codes.device.type != "meta" and not right.all():
            raise ValueError(f"int4_linear: a {what} is {numbers[~right][0].item()}, expected a whole number, 0 to 15")
    codes = codes.to(torch.uint8).view(n // 64, 4, 8, 2, k // 64, 4, 2, 4, 2).permute(0, 4, 1, 2, 7, 5, 8, 6, 3)
    codes = codes.reshape(n // 64, k // 64, 4, 32, 4, 8)
    words = sum(codes[..., i].long() << 4 * i for i in range(8))
    words = words << 3 | words >> 29  # turned left: what leaves 32 bits at one end comes in at the other
    return words.to(torch.uint32).view(torch.int32), scale.t().contiguous(), zero.to(torch.uint8).t().contiguous()
