"""y = x.contiguous(), for a view x"""

import torch
from grading import Case, Result

LAUNCHER = "launch_compact"
SIZES = [("x", 64, 96), ("x.t()", 70, 50), ("x[:, ::2]", 40, 60), ("x[3:, 5:]", 33, 40), ("x[:1].expand(9, -1)", 4, 100)]
LARGE = ("x.t()", 8192, 8192)
THINK = {
    "values": "How many elements lie between x[0][0] and x[1][0], and how many between x[0][0] and x[0][1]?",
    "bounds": "Which stride belongs to the row, and which to the column?",
    "sectors": "Neighbouring threads should write neighbouring elements of y, whatever the strides of x are.",
}


def case(view, height, width):
    x = eval(view, {"x": torch.randn(height, width)})
    strides = {"row_stride": x.stride(0), "column_stride": x.stride(1)}
    y = x.contiguous()
    case = Case(f"x is {view}, {x.shape[0]} x {x.shape[1]}", y=Result(y), x=x, height=x.shape[0], width=x.shape[1], **strides)
    return case.limit(load=y.nbytes, store=y.nbytes) if view == "x" else case


def in_torch(x, **_):
    return x.contiguous()
