"""Solutions of docs/1_minimal.md."""

import torch
from workshop import copy_of_project, edit, main, run


def exercise_1():
    """The check of the dtype refuses a float64 tensor."""
    import minimal  # noqa: F401  (builds and loads the operator)

    x = torch.ones(3, dtype=torch.float64)
    try:
        torch.ops.minimal.add(x, x)
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    print("  ", message)
    assert "expected float32" in message


def exercise_2():
    """a - b: four lines change, in three files."""
    with copy_of_project() as copy:
        folder = copy / "examples" / "minimal"
        edit(folder / "minimal.cpp", "z[i] = x[i] + y[i]", "z[i] = x[i] - y[i]")
        edit(folder / "minimal_kernel.cu", "c[i] = a[i] + b[i]", "c[i] = a[i] - b[i]")
        edit(folder / "minimal.py", "(grad, grad))", "(grad, -grad))")
        edit(folder / "minimal.py", "(a, b), a + b", "(a, b), a - b")
        assert "the same as torch" in run("examples/minimal/minimal.py", folder=copy)


def exercise_3():
    """contiguous() copies a transposed tensor; the fake kernel says that the result is contiguous."""
    head = "Tensor add(const Tensor& {}, const Tensor& {}) {{"
    copies = "const Tensor a = torch::stable::contiguous(first), b = torch::stable::contiguous(second);"
    with copy_of_project() as copy:
        folder = copy / "examples" / "minimal"
        edit(folder / "minimal.cpp", head.format("a", "b"), head.format("first", "second") + copies)
        edit(folder / "minimal.py", "torch.empty_like(a)", "a.new_empty(a.shape)")
        edit(folder / "minimal.py", "requires_grad=True) for", "requires_grad=True).t() for")
        assert "the same as torch" in run("examples/minimal/minimal.py", folder=copy)


main()
