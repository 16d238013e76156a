"""y[i] = x[i] - x[i - 1]"""

import torch
from grading import Case, Result

LAUNCHER = "launch_differences"
SIZES = [(1000,), (256,), (1,), (513,)]
LARGE = (1 << 26,)
THINK = {
    "barrier": "Which threads of the last block reach this line, and which do not?",
    "race": "Who has written the element that this thread reads, and is it there?",
    "unwritten": "The last block has elements, too.",
    "sectors": "How often is each element loaded?",
}


def case(n):
    x = torch.randn(n)
    return Case(f"n = {n}", y=Result(in_torch(x)), x=x, n=n).limit(load=x.nbytes, store=x.nbytes)


def in_torch(x, **_):
    return torch.diff(x, prepend=x.new_zeros(1))
