# Fast, but wrong: forgets that the parts of a split must be added up.
# check says: is written, read and added
from math import ceil

STEP = {(128, 256): 1, (128, 128): 0.6, (64, 128): 0.4, (64, 64): 0.3}


def time(m: int, n: int, k: int, tile_m: int, tile_n: int, split: int) -> float:
    blocks = ceil(m / tile_m) * ceil(n / tile_n) * split
    steps = ceil(k / 64 / split)
    return ceil(blocks / 132) * (8 + steps * STEP[tile_m, tile_n])


def plan(m: int, n: int, k: int) -> tuple[int, int, int]:
    """(tile_m, tile_n, split) for an m x k matrix times a k x n matrix"""
    plans = [(*tile, split) for tile in STEP for split in (1, 2, 4, 8)]
    return min(plans, key=lambda each: time(m, n, k, *each))
