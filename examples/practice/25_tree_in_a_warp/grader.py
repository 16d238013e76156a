"""out[row] = the sum of x[row], by a tree in shared memory"""

import torch
from grading import Case, Result

LAUNCHER = "launch_row_sums"
SIZES = [(5, 1000), (4, 32), (1, 1), (7, 256)]
LARGE = (65536, 1024)
THINK = {
    "race": "Lanes of a warp do not run in step. What makes one lane's write come before another lane's read?",
    "mask": "All lanes that are named must get there. Which of them do not?",
    "values": "Which elements does a lane add?",
    "sectors": "Which elements do the lanes of a warp load at the same time?",
}


def case(rows, width):
    x = torch.randn(rows, width)
    out = Result(x.double().sum(1), atol=1e-6 * x.abs().sum(1))
    case = Case(f"{rows} x {width}", out=out, x=x, rows=rows, width=width)
    return case.limit(load=x.nbytes) if width % 8 == 0 else case


def in_torch(x, **_):
    return x.sum(1)
