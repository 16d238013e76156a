"""x *= factor by a kernel that torch does not see, and autograd notices it"""

import sys

import torch
from grading import NotYet
from refereed import grade_operator
from torch.utils._python_dispatch import TorchDispatchMode

THINK = {
    "values": "After the call, x holds factor * x.",
    "version": "autograd compares a number: x._version when x was saved, and later. Who raises it?",
    "slow": "There is a function that does only this. It has the word version in its name.",
}


class Writes(TorchDispatchMode):
    """The calls of torch that write a tensor."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.is_mutable:
            self.found.append(function.name())
        return function(*args, **kwargs or {})


def written_once():
    kernel = getattr(sys.modules["answer"], "scale_", torch.ops.practice.scale_)
    with Writes() as writes:
        kernel(torch.ones(30), 2.0)
    found = [name for name in writes.found if not name.startswith("practice::")]
    if found:
        what = f"The result is right, but a function of torch writes x ({found[0]}). Only the kernel is to write it."
        raise NotYet("slow", what)


def in_torch(x, factor):
    x.mul_(factor)


def grade(answer):
    return grade_operator(
        answer,
        "practice::scale_",
        inputs=lambda device: (torch.randn(3, 5, device=device), 0.5),
        reference=in_torch,
        right=("values", "writes", "version"),
        allowed=("strides", "written_views"),
        think=THINK,
        also=written_once,
    )
