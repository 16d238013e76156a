"""y[i] = the mean of x[i-3] to x[i+3]; 0 outside of x"""

import torch
from grading import Case, Result

LAUNCHER = "launch_smooth"
SIZES = [(1000,), (256,), (1,), (258,), (2048,)]
LARGE = (1 << 26,)
THINK = {
    "values": "Which elements does the first thread of a block need, and which the last? By what does it divide?",
    "race": "Neighbours load the elements that this thread adds.",
    "bounds": "Where x ends, there is nothing to load: such elements count as 0.",
    "barrier": "Threads without an element of y have work to do before the barrier.",
    "uninitialized": "Who loads the halo behind the last element? Is that thread still there?",
    "sectors": "How many threads load each element?",
}


def case(n):
    x = torch.randn(n)
    return Case(f"n = {n}", y=Result(in_torch(x)), x=x, n=n).limit(load=x.nbytes, store=x.nbytes, slack=1.5, warp=3)


def in_torch(x, **_):
    return torch.nn.functional.avg_pool1d(x[None], 7, stride=1, padding=3)[0]
