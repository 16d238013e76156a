"""y[row][column] = a[row] * b[column]"""

import torch
from answers import quote
from emulated import check_launch
from grading import Case, NotYet, Result

from lab import emulator

LAUNCHER = "launch_outer"
SIZES = [(50, 70), (64, 64), (1, 100), (100, 1), (7, 33), (300, 96)]
LARGE = (16384, 4096)
THINK = {
    "unwritten": "How many blocks cover all columns, and how many all rows?",
    "bounds": "A block at an edge has threads outside of y, to the right and below.",
    "race": "Two threads write one element. Does a row have `width` elements, and is each column below `width`?",
    "launch": "blocks.y ends at 65535. Which of the two sizes may need more blocks than that?",
    "index": "How many elements may y have? How many bits has the index that is computed from row and column?",
    "values": "How many elements are there in a row of y? The next row starts behind them.",
    "sectors": "The 32 threads of a warp differ in threadIdx.x. How far apart do they write?",
}


def case(height, width):
    a, b = torch.randn(height), torch.randn(width)
    y = a[:, None] * b
    case = Case(f"{height} x {width}", y=Result(y), a=a, b=b, height=height, width=width)
    return case.limit(store=y.nbytes, warp=3) if width % 32 == 0 else case


def also(launcher, answer):
    """More columns than blockIdx.y has blocks, and elements above 2^32; y ends before the first one that is written."""
    height, width = 500_000, 32 * 65_537
    y, a, b = torch.zeros(256), torch.zeros(height), torch.zeros(width)
    given = (launcher, y, a, b, height, width)
    report = emulator.run(*given, order="backward", counts=False, watch=False, steps=10_000)
    about = f"{height:,} x {width:,}"
    check_launch(Case(about), report, answer)
    fault = report.faults[0] if report.faults else emulator.Fault("none", "")
    if fault.kind != "out of bounds" or not 2**32 <= (fault.address - y.data_ptr()) / 4 < height * width:
        what = f"{about}: the last block should write elements above 2^32, and does not."
        raise NotYet("index", what, quote(answer, fault.line) if fault.line else "")


def in_torch(a, b, **_):
    return torch.outer(a, b)
