"""running sums of each row"""

import torch
from grading import Case, Result

LAUNCHER = "launch_scan"
SIZES = [(2, 1000), (1, 1024), (1, 1), (3, 33), (2, 32)]
LARGE = (65536, 1024)
THINK = {
    "values": "Which elements before its own has a thread not added, or added twice?",
    "barrier": "Threads behind the end of the row take part, too. Which number changes no sum?",
    "mask": "All lanes that the mask names must call the shuffle, also those without an element.",
    "race": "Another thread writes what this one reads. Which should come first, and what makes the other wait?",
    "sectors": "How many elements does a warp read at the same time?",
}


def case(rows, width):
    x = torch.randint(-1000, 1000, (rows, width), dtype=torch.int32)
    case = Case(f"{rows} x {width}", y=Result(in_torch(x)), x=x, rows=rows, width=width)
    case.limit(warp=2)
    return case.limit(load=x.nbytes, store=x.nbytes) if width % 8 == 0 else case


def in_torch(x, **_):
    return x.cumsum(1, dtype=torch.int32)
