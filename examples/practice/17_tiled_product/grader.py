"""C = A B^T, through tiles in shared memory"""

from math import ceil

import torch
from grading import Case, Result

LAUNCHER = "launch_product"
SIZES = [(64, 32, 64), (33, 40, 45), (1, 1, 1), (5, 70, 131)]
LARGE = (4096, 4096, 4096)
THINK = {
    "values": "Which two numbers does a thread multiply in each step? Where a or b has no number, what is in the tile?",
    "race": "The block must wait in two places: before the tiles are read, and before they are overwritten.",
    "uninitialized": "Every thread copies a part of both tiles, also those whose element of c does not exist.",
    "barrier": "Every thread copies a part of both tiles, also those whose element of c does not exist.",
    "bounds": "The last rows and the last step may reach outside of a, b and c.",
    "sectors": "How often does a block load each number of its rows of a and b?",
    "conflicts": "In the inner loop, which words do the 32 threads of a warp read at the same time?",
}


def case(m, n, k):
    a, b = torch.randn(m, k), torch.randn(n, k)
    exact, size = a.double() @ b.double().t(), a.abs() @ b.abs().t()
    c = Result(exact, atol=1e-6 * size)
    case = Case(f"{m} x {n}, k = {k}", c=c, a=a, b=b, m=m, n=n, k=k).computes(2 * m * n * k)
    load = 4 * k * (m * ceil(n / 32) + n * ceil(m / 32))
    if m % 32 or n % 32 or k % 32:
        return case.limit(load=load, slack=3)  # rows begin within a sector
    return case.limit(load=load, store=4 * m * n, conflicts=0)


def in_torch(a, b, **_):
    return a @ b.t()
