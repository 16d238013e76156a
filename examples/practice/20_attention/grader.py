"""attention of one query per head, with an online softmax"""

import torch
from grading import Case, Result

LAUNCHER = "launch_attend"
SIZES = [(2, 50), (1, 1), (3, 8), (1, 131), (2, 5), (1, 13_000)]  # 13,000 scores do not fit into shared memory
LARGE = (256, 8192)
THINK = {
    "values": "When the maximum grows, which sums were made with the old one? And when the parts are joined?",
    "nan": "exp(score) is infinite from 89 on. exp(-infinity - -infinity) is not a number.",
    "bounds": "How large is each array, and how many tokens may there be?",
    "launch": "There may be more scores than shared memory holds. Which three things are enough for all of them?",
    "race": "Which warp has written the part that this thread reads?",
    "sectors": "How often are the keys read, and the values?",
}


def case(heads, tokens):
    q, keys, values = 8 * torch.randn(heads, 64), 4 * torch.randn(heads, tokens, 64), torch.randn(heads, tokens, 64)
    best = (keys @ q[:, :, None])[..., 0].argmax(1)
    keys[:, -1] = keys[torch.arange(heads), best]  # the last token counts as much as the best one
    exact = in_torch(q.double(), keys.double(), values.double())
    out = Result(exact, rtol=1e-3, atol=1e-4)
    case = Case(
        f"heads = {heads}, tokens = {tokens:,}", out=out, q=q, keys=keys, values=values, heads=heads, tokens=tokens
    )
    return case.limit(load=2 * keys.nbytes + 8 * q.nbytes).moves(2 * keys.nbytes)


def in_torch(q, keys, values, **_):
    return torch.nn.functional.scaled_dot_product_attention(q[:, None], keys, values)[:, 0]
