"""out[row] = the sum of x[row], by a block of any size"""

import torch
from grading import Case, Result

LAUNCHER = "launch_row_sums"
SIZES = [(2, 1000, 96), (1, 2048, 1024), (3, 40, 32), (2, 512, 256)]
LARGE = (65536, 1024, 128)
THINK = {
    "uninitialized": "Shared memory has no values at the start. How many warps does this block have?",
    "race": "Which of the two writes comes last is open.",
    "grid": "The caller chooses the number of threads.",
    "sectors": "How often is each element loaded?",
}


def case(rows, width, threads):
    x = torch.randn(rows, width)
    out = Result(x.double().sum(1), atol=1e-6 * x.abs().sum(1))
    case = Case(f"{rows} x {width}, {threads} threads", out=out, x=x, rows=rows, width=width, threads=threads)
    return case.limit(load=x.nbytes, blocks=rows, threads=threads)


def in_torch(x, **_):
    return x.sum(1)
