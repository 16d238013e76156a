"""y[row][column] = a[row] * b[column]"""

import torch
from grading import Case, Result

LAUNCHER = "launch_outer"
SIZES = [(50, 70), (64, 64), (1, 100), (100, 1), (7, 33), (300, 96)]
LARGE = (16384, 4096)
THINK = {
    "unwritten": "How many blocks cover all columns, and how many all rows?",
    "bounds": "A block at an edge has threads outside of y, to the right and below.",
    "race": "What does a thread do whose column is `width` or more?",
    "values": "How many elements are there in a row of y? The next row starts behind them.",
    "sectors": "The 32 threads of a warp differ in threadIdx.x. How far apart do they write?",
}


def case(height, width):
    a, b = torch.randn(height), torch.randn(width)
    y = a[:, None] * b
    case = Case(f"{height} x {width}", y=Result(y), a=a, b=b, height=height, width=width)
    return case.limit(store=y.nbytes) if width % 32 == 0 else case


def in_torch(a, b, **_):
    return torch.outer(a, b)
