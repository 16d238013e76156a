"""y[b][column][row] = x[b][row][column]"""

import torch
from grading import Case, Result

LAUNCHER = "launch_transpose"
SIZES = [(2, 64, 96), (3, 33, 45), (1, 32, 32), (1, 7, 100)]
LARGE = (4, 4096, 4096)
THINK = {
    "sectors": "Which elements of y does a warp store at the same time? Who should store what this thread loads?",
    "conflicts": "In which bank lies tile[i][j]? And tile[i + 1][j]?",
    "race": "Another warp has written most of the column.",
    "bounds": "After the turn, i and j have changed roles. So have height and width.",
    "values": "Which matrix does this block take, and where does it begin?",
    "unwritten": "Which matrix does this block take, and where does it begin?",
    "uninitialized": "After the turn, i and j have changed roles. So have height and width.",
}


def case(batch, height, width):
    x = torch.randn(batch, height, width)
    case = Case(f"{batch} x {height} x {width}", y=Result(in_torch(x)), x=x, batch=batch, height=height, width=width)
    return case.limit(load=x.nbytes, store=x.nbytes, conflicts=0, warp=2) if height % 32 == width % 32 == 0 else case


def in_torch(x, **_):
    return x.transpose(1, 2).contiguous()
