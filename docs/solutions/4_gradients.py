"""Solutions of docs/4_gradients.md."""

import torch
from workshop import main

from lab import build


def exercise_2():
    """register_autograd has no forward derivative: the tangent becomes zero, and nothing says so."""
    build.load("jit")
    import minimal  # noqa: F401

    import add2  # noqa: F401

    a, b = torch.randn(2, 3)
    tangents = [torch.func.jvp(call, (a, b), (a, b))[1] for call in (torch.ops.minimal.add, torch.ops.add2.add2)]
    for name, tangent in zip(("torch.ops.minimal.add", "torch.ops.add2.add2"), tangents, strict=True):
        print(f"   {name:21} {tangent.tolist()}")
    assert not torch.equal(tangents[0], a + b)
    assert torch.equal(tangents[1], a + b)


main()
