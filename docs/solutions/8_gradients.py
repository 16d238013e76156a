"""Solutions of docs/gradients.md."""

import sys

import torch
from workshop import copy_of_project, edit, main, need_gpus, run, show


def exercise_1():
    """A gradient that is wrong by a thousandth: the gradient's tests notice, and train.py --check."""
    with copy_of_project() as copy:
        edit(copy / "add2" / "ops.py", "return grad, grad, None  # torch", "return 1.001 * grad, grad, None  # torch")
        show(run("-m", "pytest", "-q", "tests/operator/test_gradient.py", folder=copy, status=1), "FAILED", "failed")
        show(run("train.py", "--check", "--epochs", "50", folder=copy, status=1))


def exercise_2():
    """The mean of two means is not the mean, where the parts differ in size."""
    losses = torch.arange(63.0, requires_grad=True)
    parts = losses.split([31, 32])
    for name, loss in (
        ("mean of the parts' means", (parts[0].mean() + parts[1].mean()) / 2),
        ("mean", losses.mean()),
        ("as lab/train/loop.py", sum(part.sum() / 63 * 2 for part in parts) / 2),
    ):
        weights = torch.autograd.grad(loss, losses, retain_graph=True)[0]
        print(f"   {name:25} first image 1/{1 / weights[0]:.1f}, last image 1/{1 / weights[-1]:.1f}")
        assert torch.allclose(weights[0], weights[-1]) == (name != "mean of the parts' means")


def exercise_3():
    """The warm-up before a capture trains: without putting the parameters back, the losses are others."""
    need_gpus()
    with copy_of_project() as copy:
        arguments = ("train.py", "--check", "--cuda-graph", "--epochs", "50")
        right = run(*arguments, folder=copy)
        before = run("train.py", "--compiler", "torch", "--epochs", "50", folder=copy)
        edit(copy / "lab" / "training.py", "parameter.copy_(value)", "pass")
        after = run(*arguments, folder=copy, status=None)  # --check compares the two adds, and both are wrong alike
    first = [said[said.index("epoch   0") :].splitlines()[0] for said in (before, right, after)]
    show("\n".join(first))
    assert first[0] == first[1] != first[2]


if __name__ == "__main__":
    sys.exit(main())
