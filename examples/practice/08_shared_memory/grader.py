"""y[c][i] = x[i][c], for n points of three coordinates"""

import torch
from grading import Case, Result

LAUNCHER = "launch_planes"
SIZES = [(1000,), (256,), (1,), (1536,)]
LARGE = (1 << 24,)
THINK = {
    "race": "Who has written the number that this thread reads, and how does it know that it is there?",
    "barrier": "A barrier waits for all threads of the block, also for those without a point.",
    "bounds": "The last block may have fewer than 768 numbers.",
    "uninitialized": "A block has 768 numbers and 256 threads. Has each number been copied by one of them?",
    "sectors": "Which numbers does a warp load, or store, at the same time: neighbours, or every third?",
}


def case(n):
    x = torch.randn(n, 3)
    return Case(f"n = {n}", y=Result(in_torch(x)), x=x, n=n).limit(load=x.nbytes, store=x.nbytes, conflicts=0, warp=6)


def in_torch(x, **_):
    return x.t().contiguous()
