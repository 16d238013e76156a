"""A batch of outer sums by torch.vmap, in one call"""

import torch
from grading import NotYet
from refereed import grade_operator
from torch.utils._python_dispatch import TorchDispatchMode

THINK = {
    "values": "The two operators were right; only the rule is yours.",
    "vmap": "add_outer_of_many wants x[b, i] and y[b, j]. What has the rule got, for these in_dims?",
    "slow": "The rule calls add_outer_of_many once.",
    "refused": "movedim brings a dimension to the front, expand makes one without a copy. A rule returns two things.",
    "itself": "add_outer_of_many stands for a kernel that torch does not have.",
}


class Calls(TorchDispatchMode):
    """The calls of operators of the answer."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.namespace == "practice"
        return function(*args, **kwargs or {})


def one_call_for_all():
    for in_dims in ((0, 0), (1, None), (None, 0)):
        x, y = (torch.randn(6) if dim is None else torch.randn(6, 6) for dim in in_dims)
        with Calls() as calls:
            try:
                torch.vmap(torch.ops.practice.add_outer, in_dims)(x, y)
            except Exception as error:
                words = str(error).splitlines()[0]
                raise NotYet("refused", f"For in_dims {in_dims} the rule raises an error: {words}") from None
        if calls.count == 0:
            raise NotYet("itself", "The rule calls no operator: it computes the sums itself.")
        if calls.count != 1:
            raise NotYet("slow", f"A batch of 6 makes {calls.count} calls of an operator; 1 is enough.")


def grade(answer):
    return grade_operator(
        answer,
        "practice::add_outer",
        inputs=lambda device: (torch.randn(3, device=device), torch.randn(4, device=device)),
        reference=lambda x, y: x[:, None] + y,
        right=("values",),
        allowed=("vmap",),
        think=THINK,
        also=one_call_for_all,
    )
