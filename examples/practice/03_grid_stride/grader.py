"""y[i] = max(x[i], 0), by a grid of a given size"""

import torch
from grading import Case, Result

LAUNCHER = "launch_relu"
SIZES = [(5000, 3), (1300, 2), (100, 1), (256, 4), (4097, 16)]
LARGE = (1 << 26, 1056)
THINK = {
    "unwritten": "How many elements does the whole grid compute at once? What is left?",
    "bounds": "The last round need not be a whole one.",
    "sectors": "Which element does thread 1 read while thread 0 reads element 0? Is each computed by one thread only?",
    "grid": "The caller chooses the number of blocks.",
}


def case(n, blocks):
    x = torch.randn(n)
    case = Case(f"n = {n}, {blocks} blocks", y=Result(x.relu()), x=x, n=n, blocks=blocks)
    return case.limit(load=x.nbytes, store=x.nbytes, blocks=blocks)


def in_torch(x, **_):
    return x.relu()
