"""y = W x with weights of four bits"""

import torch
from grading import Case, Result

LAUNCHER = "launch_linear"
SIZES = [(5, 1024), (3, 32), (4, 96), (9, 4096)]
LARGE = (16384, 16384)
THINK = {
    "values": "Which four bits belong to the even column, what is subtracted, which group does a byte belong to?",
    "mask": "All lanes must reach the shuffle.",
    "sectors": "Lane 0 has columns 0 and 1, lane 1 has 2 and 3. Which elements of x does a load of the warp touch?",
}


def case(rows, width):
    codes = torch.randint(0, 256, (rows, width // 2)).to(torch.uint8)
    scales, x = torch.rand(rows, width // 32) + 0.1, torch.randn(width)
    weight = unpack(codes, scales)
    y = Result(weight.double() @ x.double(), atol=1e-6 * (weight.abs() @ x.abs()))
    case = Case(f"{rows} x {width}", y=y, codes=codes, scales=scales, x=x, rows=rows, width=width)
    load = codes.nbytes + 2 * scales.nbytes + rows * x.nbytes
    return case.limit(load=load, slack=1.1).moves(codes.nbytes + scales.nbytes) if width % 64 == 0 else case


def unpack(codes, scales):
    both = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
    return (both.float() - 8) * scales.repeat_interleave(32, 1)


def in_torch(codes, scales, x, **_):
    return unpack(codes, scales) @ x
