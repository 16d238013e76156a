"""y = x.contiguous(), for a view x"""

import torch
from grading import Case, Result

LAUNCHER = "launch_compact"
VIEWS = {
    "x": lambda x: x,
    "x.t()": lambda x: x.t(),
    "x[:, ::2]": lambda x: x[:, ::2],
    "x[3:, 5:]": lambda x: x[3:, 5:],
    "x[:1].expand(9, -1)": lambda x: x[:1].expand(9, -1),
}
SIZES = [
    ("x", 64, 96),
    ("x.t()", 70, 50),
    ("x[:, ::2]", 40, 60),
    ("x[3:, 5:]", 33, 40),
    ("x[:1].expand(9, -1)", 4, 100),
]
LARGE = ("x.t()", 8192, 8192)
THINK = {
    "values": "How many elements lie between x[0][0] and x[1][0], and how many between x[0][0] and x[0][1]?",
    "bounds": "Which stride belongs to the row, and which to the column?",
    "sectors": "Neighbouring threads should write neighbouring elements of y, whatever the strides of x are.",
}


def case(view, height, width):
    x = VIEWS[view](torch.randn(height, width))
    (height, width), (row_stride, column_stride) = x.shape, x.stride()
    y = x.clone(memory_format=torch.contiguous_format)
    case = Case(
        f"the view {view}, {height} x {width}",
        y=Result(y),
        x=x,
        height=height,
        width=width,
        row_stride=row_stride,
        column_stride=column_stride,
    )
    return (
        case.limit(load=y.nbytes, store=y.nbytes, warp=2)
        if view == "x"
        else case.limit(store=y.nbytes, slack=2).moves(2 * y.nbytes)
    )


def in_torch(x, **_):
    return x.contiguous()
