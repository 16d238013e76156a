"""y[i] = 2 * x[i] + 1"""

import torch
from grading import Case, Result

LAUNCHER = "launch_map"
SIZES = [(256,), (1024,), (37 * 256,)]
LARGE = (1 << 26,)
THINK = {
    "unwritten": "Thread 3 of block 0 computes element 3. Which one does thread 3 of block 1 compute?",
    "sectors": "Threads 0 and 1 of a block run at the same time. How far apart are the elements that they read?",
}


def case(n):
    x = torch.randn(n)
    return Case(f"n = {n}", y=Result(2 * x + 1), x=x, n=n).limit(load=x.nbytes, store=x.nbytes, warp=2)


def in_torch(x, **_):
    return torch.add(1, x, alpha=2)
