"""Plans of a matrix product, by a model of time. See the task for the model."""

from math import ceil

import torch
from answers import import_answer, named_errors
from grading import NotYet

STEP = {(128, 256): 1, (128, 128): 0.6, (64, 128): 0.4, (64, 64): 0.3}
SPLITS = (1, 2, 4, 8)
SM, START = 132, 8
LIMIT = 1.02
LAYERS = [(4096, 4096, 4096), (16, 4096, 4096), (64, 4096, 14336), (512, 6144, 4096), (2048, 28672, 4096)]
THINK = {
    "waves": "How many blocks are in the last wave, and how many multiprocessors have nothing to do meanwhile?",
    "idle": "How many multiprocessors get a block at all? Which two ways are there to make more blocks?",
    "join": "Each part of a split is written, read and added.",
    "work": "Each block starts anew, and a smaller tile needs more time for each number that it computes.",
}


def parts(m, n, k, tile_m, tile_n, split):
    blocks = ceil(m / tile_m) * ceil(n / tile_n) * split
    steps = ceil(k / 64 / split)
    join = split * m * n / 2e6 if split > 1 else 0.0
    return blocks, ceil(blocks / SM), START + steps * STEP[tile_m, tile_n], join


def time(size, plan):
    _, waves, each, join = parts(*size, *plan)
    return waves * each + join


def why(size, plan, best):
    """Why a plan takes longer than the best time: the kind of THINK, and the model's numbers."""
    blocks, waves, each, join = parts(*size, *plan)
    text = f"{blocks:,} blocks in {waves} {'wave' if waves == 1 else 'waves'} of {each:.1f}"
    if join:
        text += f", and {join:.1f} to join the parts"
    if join and waves * each < LIMIT * best:  # without the join it would be good enough
        return "join", text
    if blocks < SM // 2:
        return "idle", text
    if waves * SM > 1.2 * blocks:
        return "waves", text
    return "work", text


def sizes():
    random = torch.randint(1, 5000, (200, 3)).tolist()
    return [*LAYERS, *map(tuple, random)]


def grade(answer):
    plan = getattr(import_answer(answer), "plan", None)
    if plan is None:
        raise NotYet("call", f"{answer.name} has no function plan.", think="The skeleton has it.")
    allowed = [(*tile, split) for tile in STEP for split in SPLITS]
    worst, where = 1.0, None
    for size in sizes():
        with named_errors(answer, f"raises an error in plan{size}"):
            chosen = plan(*size)
            chosen = tuple(chosen) if isinstance(chosen, list) else chosen
        if chosen not in allowed:
            tiles = ", ".join(map(str, STEP))
            what = f"plan{size} returns {chosen}; allowed are tiles of {tiles}, and a split of 1, 2, 4 or 8."
            raise NotYet("format", what, think="The kernel has no other versions.")
        best = min(time(size, each) for each in allowed)
        ratio = time(size, chosen) / best
        if ratio > worst:
            worst, where = ratio, (size, chosen, best)
    if worst > LIMIT:
        size, chosen, best = where
        kind, text = why(size, chosen, best)
        what = f"plan{size} returns {chosen}, which takes {worst:.2f} times as long as the best plan: {text}."
        raise NotYet(kind, what, think=THINK[kind])
    return [f"at {len(sizes())} sizes no plan takes more than {worst:.2f} times as long as the best one"]
