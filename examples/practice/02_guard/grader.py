"""y[i] = x[n - 1 - i], for any n"""

import torch
from grading import Case, Result

LAUNCHER = "launch_reverse"
SIZES = [(1000,), (1,), (255,), (257,), (1024,), (9477,), (0,)]
LARGE = ((1 << 26) + 5,)
THINK = {
    "bounds": "The grid has whole blocks, so it may have more threads than elements. What should the others do?",
    "unwritten": "How many blocks does the launcher start, and how many elements are there?",
    "launch": "What does the launcher start if there are no elements?",
    "sectors": "32 threads of one block run together as a warp. How many threads of a warp have work here?",
}


def case(n):
    x = torch.randn(n)
    return Case(f"n = {n}", y=Result(x.flip(0)), x=x, n=n).limit(load=x.nbytes, store=x.nbytes, warp=2)


def in_torch(x, **_):
    return x.flip(0)
