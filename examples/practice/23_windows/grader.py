"""y[i] = max(x[2 i], x[2 i + 1], x[2 i + 2])"""

import torch
from grading import Case, Result

LAUNCHER = "launch_windows"
SIZES = [(1000,), (999,), (1,), (2,), (512,)]
LARGE = (1 << 26,)
THINK = {
    "bounds": "How many elements has the last window if n is even?",
    "values": "What does a window contain that reaches behind the end: only elements that exist, and all of them?",
    "sectors": "Which windows do the threads of a warp have?",
}


def case(n):
    x = torch.randn(n)
    x[-2:] = torch.tensor([-3e38, -2e38])[-n:]  # the last window shows what it takes
    y = in_torch(x)
    case = Case(f"n = {n}", y=Result(y), x=x, n=n)
    return case.limit(load=3 * x.nbytes, store=y.nbytes, slack=1.6).moves(6 * n)


def in_torch(x, **_):
    padded = torch.nn.functional.pad(x, (0, 2), value=-torch.inf)
    return torch.nn.functional.max_pool1d(padded[None], 3, stride=2)[0, : (len(x) + 1) // 2]
