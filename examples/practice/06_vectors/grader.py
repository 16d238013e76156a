"""y[i] = 0.5 * x[i], by vectors of 16 bytes where the addresses allow it"""

import torch
from grading import Case, Result

LAUNCHER = "launch_scale"
SIZES = [(4099, 0, 0), (4096, 0, 0), (40963, 0, 0), (3, 0, 0), (1026, 1, 0), (1025, 0, 1), (1000, 2, 2)]
LARGE = ((1 << 26) + 3, 0, 0)
THINK = {
    "unwritten": "Elements that do not fill a vector are elements, too.",
    "bounds": "A vector holds four elements. Are four left?",
    "misaligned": "When is the address of a float4 right? It depends on where x and y begin.",
    "requests": "One load of a warp can bring 32 x 16 bytes.",
    "sectors": "Which bytes do threads 0 and 1 load at the same time?",
}


def case(n, x_offset, y_offset):
    x = torch.randn(n + x_offset)[x_offset:]
    about = f"n = {n}" + (
        f", x at 16 k + {4 * x_offset} and y at 16 k + {4 * y_offset}" if x_offset or y_offset else ""
    )
    case = Case(about, y=Result(0.5 * x, offset=y_offset), x=x, n=n)
    case.limit(load=x.nbytes, store=x.nbytes, warp=2)
    return case if x_offset or y_offset else case.limit(load_requests=n / 128, store_requests=n / 128)


def in_torch(x, **_):
    return 0.5 * x
