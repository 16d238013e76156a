"""flat[i] = rows[i] * width + columns[i]"""

import torch
from grading import Case, Result

LAUNCHER = "launch_flatten"
SIZES = [(1000, 1000), (300, 100_000), (2_049, 2_000_000_000), (1, 46_341)]
LARGE = (1 << 26, 2_000_000_000)
THINK = {
    "values": "How many bits has the product of two ints, and when are they extended to 64?",
    "unwritten": "Each entry has a position.",
    "sectors": "32 threads of one block run together as a warp. How many of them have work?",
}


def case(n, width):
    rows, columns = torch.randint(width // 2, width, (2, n), dtype=torch.int32)
    flat = in_torch(rows, columns, width)
    case = Case(f"n = {n}, width = {width:,}", flat=Result(flat), rows=rows, columns=columns, n=n, width=width)
    return case.limit(load=8 * n, store=8 * n)


def in_torch(rows, columns, width, **_):
    return rows.long() * width + columns
