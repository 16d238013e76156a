"""y[i, j] = weight[j] * x[i, j]^2, with a gradient for both"""

import torch
from grading import NotYet
from refereed import grade_operator
from torch.utils._python_dispatch import TorchDispatchMode

THINK = {
    "gradients": "By which numbers does y change if weight[j] does? In how many elements of y is it used?",
    "lost_gradients": "None says: the result does not depend on this input. Is that so?",
    "gradient_sizes": "What does backward do with another number of rows?",
    "second_derivatives": "backward is differentiated again. Is all of it made of functions that have a derivative?",
    "gradient_subsets": "What if only one of the two requires a gradient?",
    "slow": "Write the derivative by hand: it is a product of three tensors, and for weight a sum of them.",
}


class Count(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **kwargs or {})


def few_calls():
    x, weight = torch.randn(4, 100, requires_grad=True), torch.randn(100, requires_grad=True)
    y = torch.ops.practice.weigh_squares(x, weight)
    with Count() as count:
        y.sum().backward()  # whose gradient is one number, expanded
    if count.calls > 40:
        raise NotYet(
            "slow", f"The gradient is right, but for 100 columns backward makes {count.calls:,} calls of torch."
        )


def grade(answer):
    return grade_operator(
        answer,
        "practice::weigh_squares",
        inputs=lambda device: (torch.randn(3, 5, device=device), torch.randn(5, device=device)),
        reference=lambda x, weight: weight * x * x,
        gradients=(0, 1),
        sizes={"rows": [(0, 0)], "columns": [(0, 1), (1, 0)]},
        right=("values", "lost_gradients", "gradients", "gradient_sizes"),
        allowed=("gradient_subsets", "second_derivatives"),
        think=THINK,
        also=few_calls,
    )
