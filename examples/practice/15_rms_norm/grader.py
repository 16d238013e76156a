"""RMSNorm of bfloat16 rows, with rstd"""

import torch
from grading import Case, Result

LAUNCHER = "launch_rms_norm"
SIZES = [(3, 1000), (2, 256), (1, 1), (2, 33), (1, 4096)]
LARGE = (16384, 4096)
THINK = {
    "values": "Is it the sum of all threads, in float32? What divides it, where is epsilon? How often is y rounded?",
    "unwritten": "There are two results: y, and one number per row for the gradient, rstd.",
    "race": "Two threads must not write the same element.",
    "sectors": "Which elements do the 32 threads of a warp read at the same time?",
}


def case(rows, width):
    x = torch.randn(rows, width).bfloat16()
    x[1:2] *= 1e-4
    x[2:3] = 0
    weight = torch.randn(width).bfloat16()
    rstd = (x.double().square().mean(1) + 1e-6).rsqrt()
    y = x.double() * rstd[:, None] * weight.double()
    results = {"y": Result(y, dtype=torch.bfloat16, rtol=2**-8), "rstd": Result(rstd, rtol=1e-5)}
    case = Case(f"{rows} x {width}", **results, x=x, weight=weight, rows=rows, width=width)
    case.moves(2 * x.nbytes)
    if width % 16:
        return case
    per_warp = 4 * -(-width // 256) + 1  # x twice, weight, y; rstd
    return case.limit(load=2 * x.nbytes + rows * weight.nbytes, store=x.nbytes + 32 * rows, warp=per_warp)


def in_torch(x, weight, **_):
    return torch.nn.functional.rms_norm(x, x.shape[1:], weight, 1e-6)
