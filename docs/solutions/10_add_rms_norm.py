"""Solutions of docs/10_add_rms_norm.md."""

import torch
from workshop import main


def exercise_1():
    """Bytes per element: to keep x costs a write, and saves nothing."""
    half = 2
    forward = {"as it is": ("a", "b", "s", "y"), "with x kept": ("a", "b", "s", "y", "x")}
    backward = {"as it is": ("s", "dy", "ds", "dx"), "with x kept": ("x", "dy", "ds", "dx")}
    for name in forward:
        print(f"   {name}: forward {half * len(forward[name])}, backward {half * len(backward[name])}")
    assert [half * len(tensors) for tensors in (*forward.values(), *backward.values())] == [8, 10, 8, 8]


def exercise_2():
    """A float32 weight with bfloat16 inputs."""
    import add_rms_norm

    add_rms_norm.build()
    a, b = torch.randn(2, 4, 64).bfloat16()
    weight = torch.ones(64, requires_grad=True)
    y, _ = add_rms_norm.add_rms_norm(a, b, weight)
    y.float().sum().backward()
    print(f"   y: {y.dtype}, gradient of weight: {weight.grad.dtype}")
    assert (y.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


main()
