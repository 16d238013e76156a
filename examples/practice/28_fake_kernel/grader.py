"""result[i, j] = x[i] + y[j], column by column, with a fake kernel that says so"""

import torch
from grading import NotYet
from refereed import grade_operator

THINK = {
    "values": "The real kernel was right.",
    "fake": "A fake kernel describes the result: shape, strides, dtype and device, whatever the numbers are.",
    "dtypes": "Which dtype has the result if x is float64?",
    "device": "On which device does torch.empty put a tensor if nothing is said?",
    "layout": "The task asks for the kernel's own layout. Which of the two functions is wrong?",
}


def columns_lie_together():
    strides = torch.ops.practice.pair_sums(torch.zeros(6), torch.zeros(5)).stride()
    if strides != (1, 6):
        what = f"The result for 6 and 5 numbers has strides {strides}; the task asks for (1, n), here (1, 6)."
        raise NotYet("layout", what)


def meta_stays_meta():
    device = torch.ops.practice.pair_sums(torch.zeros(6, device="meta"), torch.zeros(5, device="meta")).device
    if device.type != "meta":
        what = f"With both arguments on the device meta the fake kernel returns a tensor on {device}."
        raise NotYet("device", what)


def also():
    columns_lie_together()
    meta_stays_meta()


def grade(answer):
    return grade_operator(
        answer,
        "practice::pair_sums",
        inputs=lambda device: (torch.randn(3, device=device), torch.randn(4, device=device)),
        reference=lambda x, y: x[:, None] + y,
        sizes={"n": [(0, 0)], "m": [(1, 0)]},
        right=("values", "fake", "dtypes"),
        allowed=("meta", "traced", "empty"),
        think=THINK,
        also=also,
    )
