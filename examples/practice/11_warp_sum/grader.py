"""out[row] = the sum of x[row], by a warp"""

import torch
from grading import Case, Result

LAUNCHER = "launch_row_sums"
SIZES = [(5, 1000), (4, 32), (1, 1), (7, 31), (9, 256)]
LARGE = (65536, 1024)
THINK = {
    "values": "Which lanes' sums has lane 0 added at the end?",
    "mask": "All lanes that the mask names must take part, or the result is undefined.",
    "sectors": "Which elements do the 32 lanes read at the same time?",
    "atomics": "How many atomic additions to one address are made at the same time? A shuffle needs none.",
    "shared": "A shuffle reads another lane's register. It needs no memory.",
}


def case(rows, width):
    x = torch.randn(rows, width)
    out = Result(x.double().sum(1), atol=1e-6 * x.abs().sum(1))
    case = Case(f"{rows} x {width}", out=out, x=x, rows=rows, width=width).limit(shared=0, atomics=0)
    case.limit(warp=width / 32 + 1)
    return case.limit(load=x.nbytes) if width % 8 == 0 else case


def in_torch(x, **_):
    return x.sum(1)
