"""Exercise 38: see task.md. To grade it: python3 practice.py check 38"""


def plan(m: int, n: int, k: int) -> tuple[int, int, int]:
    """(tile_m, tile_n, split) for an m x k matrix times a k x n matrix"""
    return 128, 256, 1  # Here: the largest tiles need the least time per number, but how many are there?
