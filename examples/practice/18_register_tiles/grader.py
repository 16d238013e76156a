"""C = A B^T, with 4 x 4 sums per thread"""

from math import ceil

import torch
from grading import Case, Result

LAUNCHER = "launch_product"
SIZES = [(64, 64, 64), (70, 40, 45), (1, 1, 1), (5, 130, 117)]
LARGE = (4096, 4096, 4096)
THINK = {
    "values": "Which 16 elements of c has a thread, and where does it store each of them?",
    "race": "The block must wait in two places: before the tiles are read, and before they are overwritten.",
    "bounds": "A tile at the edge has elements outside of c.",
    "sectors": "How often does a block load each number of its rows of a and b?",
    "conflicts": "Which words do the threads of a warp touch at the same time, when they copy and when they multiply?",
    "shared": "How many numbers does a thread load from shared memory per step, and how often does it use each?",
}


def case(m, n, k):
    a, b = torch.randn(m, k), torch.randn(n, k)
    exact, size = a.double() @ b.double().t(), a.abs() @ b.abs().t()
    c = Result(exact, atol=1e-6 * size)
    case = Case(f"{m} x {n}, k = {k}", c=c, a=a, b=b, m=m, n=n, k=k).computes(2 * m * n * k)
    load = 4 * k * (m * ceil(n / 64) + n * ceil(m / 64))
    if m % 64 or n % 64 or k % 64:
        return case.limit(load=load, slack=3)  # rows begin within a sector
    return case.limit(load=load, store=4 * m * n, conflicts=0, shared=0.7 * m * n * k / 32)


def in_torch(a, b, **_):
    return a @ b.t()
