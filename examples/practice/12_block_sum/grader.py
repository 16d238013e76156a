"""mean and variance of each row, by a block"""

import torch
from grading import Case, Result

LAUNCHER = "launch_statistics"
SIZES = [(3, 1000), (2, 256), (1, 1), (4, 33), (2, 2048)]
LARGE = (16384, 4096)
THINK = {
    "values": "How many threads' sums does each thread of the block have after sum_over_block? Both divide by `width`.",
    "race": "Which warp may still read, and which may already write? The function is called twice.",
    "bounds": "Each warp of the block writes one number. How many warps are there?",
    "uninitialized": "Which threads write to the shared array, and are there as many of them as are read?",
    "sectors": "How often does the block read each element?",
}


def case(rows, width):
    x = torch.randn(rows, width) + 1000
    variance, mean = torch.var_mean(x.double(), 1, correction=0)
    case = Case(
        f"{rows} x {width}",
        mean=Result(mean, rtol=1e-6),
        variance=Result(variance, rtol=1e-3, atol=1e-6),
        x=x,
        rows=rows,
        width=width,
    )
    case.limit(warp=2 * -(-width // 256) + 2)
    return case.limit(load=2 * x.nbytes).moves(x.nbytes) if width % 8 == 0 else case


def in_torch(x, **_):
    return torch.var_mean(x, 1, correction=0)
