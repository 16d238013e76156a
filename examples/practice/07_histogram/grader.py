"""counts[x[i]] += 1 for each i"""

import torch
from grading import Case, Result

LAUNCHER = "launch_histogram"
SIZES = [(5000, 256, 4), (20000, 256, 16), (1, 256, 1), (999, 3, 2), (257, 1, 3)]
LARGE = (1 << 26, 256, 1056)
THINK = {
    "race": "Two threads change one counter. What happens if both read it before one of them has written?",
    "values": "Which counter belongs to a value, and is it raised once for each value?",
    "atomics": "Between a thread's read of a counter and its write, may another thread change it?",
    "bounds": "Values go from 0 to 255, so the type of a value has no sign.",
    "sectors": "How often does a block read each value?",
}


def case(n, values, blocks):
    x = torch.randint(256 - values, 256, (n,)).to(torch.uint8)
    counts = in_torch(x).int()
    about = f"n = {n} with {values} different values, {blocks} blocks"
    case = Case(about, counts=Result(counts, initial=torch.zeros_like(counts)), x=x, n=n, blocks=blocks)
    values_per_thread = -(-n // (256 * blocks))
    case.limit(warp=2 * values_per_thread)
    return case.limit(load=x.nbytes, blocks=blocks, atomics=n / 32 + 8 * blocks)


def in_torch(x, **_):
    # Not torch.bincount, which waits for the GPU to learn the largest value.
    counts = torch.zeros(256, dtype=torch.int32, device=x.device)
    return counts.scatter_add_(0, x.long(), torch.ones_like(x, dtype=torch.int32))
