"""bitsandbytes 0.50.2: pip install bitsandbytes."""

import bitsandbytes  # noqa: F401 (registers the operators)
import torch

from lab.referee import Operator

BLOCK = 64


def dequantized_by_torch(numbers, scales, code):
    """Each number is a place in the table `code`; 64 in a row share a scale."""
    blocks = code[numbers.long()].flatten().split(BLOCK)
    scaled = [block * scale for block, scale in zip(blocks, scales.unbind(), strict=True)]
    return torch.cat(scaled).view(numbers.shape).float()


dequantize = Operator(
    "bitsandbytes::dequantize_blockwise",
    call=lambda numbers, scales, code: torch.ops.bitsandbytes.dequantize_blockwise(
        numbers, scales, code, BLOCK, torch.float32
    ),
    reference=dequantized_by_torch,
    inputs=lambda device: (
        torch.randint(0, 256, (3, 128), dtype=torch.uint8, device=device),
        torch.rand(6, device=device) + 0.5,
        torch.linspace(-1, 1, 256, device=device),
    ),
    sizes={},
)


def quantized_by_torch(x, code):
    """The place of the nearest number of the table, after a division by the block's largest absolute value."""
    blocks = x.view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    distances = ((blocks / scales[:, None])[:, :, None] - code).abs()
    return distances.argmin(2).to(torch.uint8).view(x.shape), scales


quantize = Operator(
    "bitsandbytes::quantize_blockwise",
    call=lambda x, code: torch.ops.bitsandbytes.quantize_blockwise(x, code, BLOCK),
    reference=quantized_by_torch,
    inputs=lambda device: (torch.randn(3, 128, device=device), torch.linspace(-1, 1, 256, device=device)),
    sizes={},
)

product = Operator(
    "bitsandbytes::int8_linear_matmul",
    reference=lambda a, b: (a.long() @ b.long().mT).int(),
    inputs=lambda device: [torch.randint(-128, 128, (n, 32), dtype=torch.int8, device=device) for n in (5, 8)],
)
