"""Solutions of docs/4_gradients.md."""

import torch
from workshop import copy_of_project, edit, main, need_gpus, run, show

from lab import build


def exercise_1():
    """A gradient that is wrong by a thousandth: the gradient's tests notice, and train.py --check."""
    with copy_of_project() as copy:
        edit(copy / "add2" / "gradient.py", "return None, grad, grad", "return None, 1.001 * grad, grad")
        edit(
            copy / "add2" / "function.py",
            "gradients = (grad_a,",
            "gradients = (None if grad_a is None else 1.001 * grad_a,",
        )
        edit(copy / "add2" / "fast.py", "return grad, grad\n", "return 1.001 * grad, grad\n")
        show(run("-m", "pytest", "-q", "tests/operator/test_gradient.py", folder=copy, status=1), "FAILED", "failed")
        show(run("train.py", "--check", "--epochs", "50", folder=copy, status=1))


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


def exercise_3():
    """The warm-up before a capture trains: without putting the parameters back, the losses are others."""
    need_gpus()
    with copy_of_project() as copy:
        arguments = ("train.py", "--check", "--cuda-graph", "--epochs", "50")
        right = run(*arguments, folder=copy)
        before = run("train.py", "--compiler", "torch", "--epochs", "50", folder=copy)
        edit(copy / "lab" / "train" / "loop.py", "network.load_state_dict(before)", "pass")
        after = run(*arguments, folder=copy, status=None)  # --check compares the two adds, and both are wrong alike
    first = [said[said.index("epoch   0") :].splitlines()[0] for said in (before, right, after)]
    show("\n".join(first))
    assert first[0] == first[1] != first[2]


main()
