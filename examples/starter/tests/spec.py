"""What the referee has to know of squared_relu: python3 -m referee tests/spec.py"""

import torch
from referee import Operator
from test_squared_relu import by_torch

from squared_relu import squared_relu

spec = Operator(
    "squared_relu::squared_relu",
    call=squared_relu,
    inputs=lambda device: (torch.randn(3, 6, device=device), 0.7),
    reference=by_torch,
    gradients=(0,),
    wrong={
        "no kernel for Int": {0: lambda x: x.int()},
        "expected a number": {1: torch.ones(())},
        "x is None": {0: None},
    },
)
