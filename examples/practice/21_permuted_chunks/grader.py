"""y[chunk][i] = x[chunk][order[i]]"""

import torch
from grading import Case, Result

LAUNCHER = "launch_permute"
SIZES = [(7, 3), (1, 1), (4, 4), (5, 2)]
LARGE = (1 << 18, 1056)
THINK = {
    "race": "Follow a fast warp and a slow one through two rounds of the loop. In which round is each line?",
    "unwritten": "A block takes more than one chunk.",
    "grid": "The caller chooses the number of blocks.",
    "sectors": "Which elements does a warp load at the same time?",
}


def case(chunks, blocks):
    x, order = torch.randn(chunks, 256), torch.randperm(256).int()
    case = Case(
        f"{chunks} chunks, {blocks} blocks",
        y=Result(in_torch(x, order)),
        x=x,
        order=order,
        chunks=chunks,
        blocks=blocks,
    )
    return case.limit(load=x.nbytes + blocks * order.nbytes, store=x.nbytes, blocks=blocks).moves(2 * x.nbytes)


def in_torch(x, order, **_):
    return x[:, order]
