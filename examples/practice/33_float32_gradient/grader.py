"""The gradient of (x - mean) / deviation, for numbers far from 0, in float32"""

from unittest.mock import patch

import torch
from grading import NotYet
from refereed import grade_operator
from torch.utils._python_dispatch import TorchDispatchMode

THINK = {
    "values": "The forward pass was right.",
    "gradients": "float32 has 7 digits. How many of them are left of the difference of two numbers near 1,000,000?",
    "gradient_sizes": "What does backward do for other sizes?",
    "numbers": "Python and NumPy compute in float64, and only on a CPU. The same formula needs no more digits.",
    "float64": "The same formula needs no more digits if nothing large is subtracted from something large.",
}


class Dtypes(TorchDispatchMode):
    """The first call of torch that computes in float64."""

    def __init__(self):
        super().__init__()
        self.found = ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.found = self.found or function.name()
        return result


def refuse_to_leave(*_):
    what = "The gradient is right, but backward takes the numbers out of the tensors, to compute without torch."
    raise NotYet("numbers", what)


def stays_in_float32():
    x = torch.randn(4, 6, requires_grad=True)
    y = torch.ops.practice.standardize(x)[0]
    ways_out = dict.fromkeys(("numpy", "tolist", "item", "__array__", "__float__"), refuse_to_leave)
    with Dtypes() as dtypes, patch.multiple(torch.Tensor, **ways_out):
        y.sum().backward()
    if dtypes.found:
        what = f"The gradient is right, but of float32 numbers it is computed in float64 (by {dtypes.found})."
        raise NotYet("float64", f"{what} Most GPUs do that many times slower.")


def inputs(device):
    return (torch.tensor([[1000.0], [-1000.0], [1100.0]], device=device) + torch.randn(3, 6, device=device),)


def in_torch(x):
    mean = x.mean(1, keepdim=True)
    return (x - mean) / (x - mean).square().mean(1, keepdim=True).sqrt()


def grade(answer):
    return grade_operator(
        answer,
        "practice::standardize",
        call=lambda x: torch.ops.practice.standardize(x)[0],
        inputs=inputs,
        reference=in_torch,
        gradients=(0,),
        sizes={"rows": [(0, 0)]},
        tolerance={torch.float32: 1e-3},
        right=("values", "gradients"),
        allowed=("gradient_sizes",),
        think=THINK,
        also=stays_in_float32,
    )
