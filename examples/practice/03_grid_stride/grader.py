"""y[i] = max(x[i], 0), by a grid of a given size"""

import torch
from answers import quote
from grading import Case, NotYet, Result

from lab import emulator

LAUNCHER = "launch_relu"
SIZES = [(5000, 3), (1300, 2), (100, 1), (256, 4), (4097, 16)]
LARGE = (1 << 26, 1056)
THINK = {
    "unwritten": "How many elements does the whole grid compute at once? What is left?",
    "bounds": "The last round need not be a whole one.",
    "sectors": "Which element does thread 1 read while thread 0 reads element 0? Is each computed by one thread only?",
    "hang": "How much larger is i in each round?",
    "grid": "The caller chooses the number of blocks.",
    "index": "A thread's next element is as far away as the grid has threads. How many bits have index, n and stride?",
}


def case(n, blocks):
    x = torch.randn(n)
    case = Case(f"n = {n}, {blocks} blocks", y=Result(x.relu()), x=x, n=n, blocks=blocks)
    return case.limit(load=x.nbytes, store=x.nbytes, blocks=blocks, warp=2 * -(-n // (256 * blocks)))


def also(launcher, answer):
    """Indices above 2^32, without the memory: the first access there is a fault, and says which element it is."""
    blocks, n = (1 << 24) + 1, (1 << 32) + (1 << 31) - 1
    stride, about = 256 * blocks, f"n = {n:,}, {blocks:,} blocks"
    for order, who, expected in (("forward", "the first", stride), ("backward", "the last", stride - 1)):
        y, x = torch.zeros(256), torch.zeros(256)
        report = emulator.run(launcher, y, x, n, blocks, order=order, counts=False, watch=False, steps=10_000)
        if not report.faults:
            raise NotYet("index", f"{about}: {report.error or 'no thread has touched an element above 2^32'}.")
        fault = report.faults[0]
        elements = {(fault.address - each.data_ptr()) / 4 for each in (x, y)}
        if fault.kind != "out of bounds" or expected not in elements:
            what = f"{who} thread should touch element {expected:,}, which lies above 2^32, and does not"
            raise NotYet("index", f"{about}: {what}.", quote(answer, fault.line))


def in_torch(x, **_):
    return x.relu()
