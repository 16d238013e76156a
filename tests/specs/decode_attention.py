"""attend(), append() and step() of page 17: none has a gradient, and the last two write into the cache."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from lab.referee import Operator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/decode_attention"))
import decode_attention as lesson

lesson.build()


def attend_inputs(device):
    half = {"device": device, "dtype": torch.float16}
    lengths = torch.tensor([40, 17], dtype=torch.int32, device=device)
    return (*(torch.randn(*shape, 64, **half) for shape in ((2, 8), (2, 2, 40), (2, 2, 40))), lengths)


def attend_by_torch(q, keys, values, lengths):
    """Rows without tokens give zeros.

    In float64: with float32 and a mask, torch's kernel on a GPU splits each number into two of TF32, and makes NaN of
    an infinite value: inf - inf.
    """
    groups = q.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(groups, 1) for x in (keys, values))
    is_valid = torch.arange(keys.shape[2], device=q.device) < lengths[:, None, None, None]
    values = values.where(is_valid.mT, 0)
    out = F.scaled_dot_product_attention(q.double()[:, :, None], keys, values, is_valid)[:, :, 0]
    return out.where(lengths[:, None, None] > 0, 0).to(q.dtype)


attend = Operator(
    "decode_attention::attend",
    call=lesson.attend,
    reference=attend_by_torch,
    inputs=attend_inputs,
    sizes={"rows": [(0, 0), (1, 0), (2, 0), (3, 0)]},
    wrong={
        "q has 7 heads and keys 2": {0: lambda q: q[:, :7]},
        r"lengths is Long\[2\], expected Int\[2\]": {3: lambda lengths: lengths.long()},
        "keys is Half.*expected BFloat16": {0: lambda q: q.bfloat16()},
    },
)


def append_inputs(device):
    half = {"device": device, "dtype": torch.float16}
    tables = [torch.randn(40, 32, device=device) for _ in ("cos", "sin")]
    new = [torch.randn(2, heads, 1, 64, **half) for heads in (8, 2, 2)]
    lengths = torch.tensor([3, 39], dtype=torch.int32, device=device)
    return (*new, *tables, lengths, *(torch.zeros(2, 2, 40, 64, **half) for _ in ("keys", "values")))


append = Operator(
    "decode_attention::append",
    call=lesson.append,
    inputs=append_inputs,
    wrong={
        r"cos is Float\[39, 32\], expected Float\[40, 32\]": {3: lambda cos: cos[1:]},
    },
)


def step_inputs(device):
    q, k, v, *rest = append_inputs(device)
    return (*(x[:, :, 0] for x in (q, k, v)), *rest)


def step_by_two(q, k, v, cos, sin, lengths, keys, values):
    """append() and attend() one after the other, which have references of their own."""
    q = lesson.append(*(x[:, :, None] for x in (q, k, v)), cos, sin, lengths, keys, values)
    return lesson.attend(q[:, :, 0], keys, values, lengths + 1)


step = Operator(
    "decode_attention::step",
    call=lesson.step,
    reference=step_by_two,
    inputs=step_inputs,
    wrong={
        "q has 7 heads and keys 2": {0: lambda q: q[:, :7]},
        r"cos is Float\[39, 32\], expected Float\[40, 32\]": {3: lambda cos: cos[1:]},
    },
)
