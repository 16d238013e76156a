"""gradients of RMSNorm: dx by rows, dweight by columns"""

import torch
from grading import Case, Result, Scratch

LAUNCHER = "launch_gradient"
SIZES = [(7, 1000, 3), (5, 256, 2), (1, 1, 1), (2, 33, 4), (8, 1024, 2), (12, 256, 12)]
LARGE = (65536, 1024, 264)
THINK = {
    "values": "dx: a change of x[i] changes rstd, so all of the row. dweight: is each row of the block added?",
    "bounds": "partial has one row for each block.",
    "uninitialized": "The second kernel reads partial of every block, also of those without rows.",
    "unwritten": "Which blocks have rows, and which columns has a thread?",
    "race": "Each element of partial belongs to one thread.",
    "atomics": "In which order do atomics add? The second kernel always adds in the same one.",
    "sectors": "What should stay in registers until dx of the row is written, and what until the last row?",
}


def case(rows, width, blocks):
    x, dy = torch.randn(2, rows, width)
    weight = torch.randn(width)
    rstd = (x.square().mean(1) + 1e-6).rsqrt()
    normal, scaled = x.double() * rstd[:, None], dy.double() * weight
    dx = rstd[:, None] * (scaled - normal * (scaled * normal).mean(1, keepdim=True))
    dweight = (dy * normal).sum(0)
    case = Case(
        f"{rows} x {width}, {blocks} blocks",
        dx=Result(dx, rtol=1e-4, atol=1e-5),
        dweight=Result(dweight, rtol=1e-4, atol=1e-4 * rows**0.5),
        partial=Scratch(blocks, width),
        dy=dy,
        x=x,
        weight=weight,
        rstd=rstd,
        rows=rows,
        width=width,
        blocks=blocks,
    )
    load = 2 * x.nbytes + rows * weight.nbytes + 4 * blocks * width + rows * 256
    elements, rows_per_block = -(-width // 256), -(-rows // blocks)
    per_warp = rows_per_block * (5 * elements + 1) + elements  # dy, x, weight, dx and rstd; partial
    case.moves(3 * x.nbytes).limit(atomics=0, warp=max(per_warp, blocks + 1))
    return case.limit(load=load, store=x.nbytes + 4 * blocks * width + weight.nbytes) if width % 8 == 0 else case


def in_torch(x, weight, dy, rstd, **_):
    return torch.compile(gradients)(x, weight, dy, rstd)


def gradients(x, weight, dy, rstd):
    normal, scaled = x * rstd[:, None], dy * weight
    return rstd[:, None] * (scaled - normal * (scaled * normal).mean(1, keepdim=True)), (dy * normal).sum(0)
