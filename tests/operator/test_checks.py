"""Wrong calls are refused before anything is written, and say what was found and what was expected."""

import pytest
import torch


def x(*shape, dtype=torch.float32, device="cpu"):
    return torch.ones(*shape, dtype=dtype, device=device)


# what is wrong: the inputs for add2(a, b), words of the message
ADD2 = {
    "shape": (lambda d: (x(3, device=d), x(4, device=d)), r"b has shape \[4\], expected \[3\] like a"),
    "dimensions": (lambda d: (x(2, 3, device=d), x(6, device=d)), r"b has shape \[6\], expected \[2, 3\]"),
    "broadcast": (lambda d: (x(2, 3, device=d), x(3, device=d)), "does not broadcast"),
    "dtype of b": (lambda d: (x(3, device=d), x(3, device=d).double()), "b has dtype Double, expected Float like a"),
    "integers": (lambda d: (x(3, device=d).int(), x(3, device=d).int()), "a has dtype Int, expected Float, Double"),
    "complex": (lambda d: (x(3, device=d).cfloat(),) * 2, "a has dtype ComplexFloat, expected Float, Double"),
    "bool": (lambda d: (x(3, device=d).bool(),) * 2, "a has dtype Bool, expected Float, Double"),
}


@pytest.mark.parametrize("case", ADD2, ids=ADD2)
def test_add2(device, case):
    import add2

    make, words = ADD2[case]
    a, b = make(device)
    with pytest.raises(RuntimeError, match=f"add2: .*{words}"):
        add2.add2(a, b)


# what is wrong: c, a, b, n for torch_launch_add2, words of the message
LAUNCH = {
    "n is negative": (lambda d: (*x(3, 5, device=d), -1), "n is -1, expected 0 or more"),
    "n is too large for c": (lambda d: (x(4, device=d), *x(2, 5, device=d), 5), "n is 5, but c has only 4 elements"),
    "n is too large for a": (lambda d: (x(6, device=d), x(5, device=d), x(6, device=d), 6), "a has only 5 elements"),
    "n is too large for b": (lambda d: (x(6, device=d), x(6, device=d), x(0, device=d), 6), "b has only 0 elements"),
    "n beyond 2^62": (lambda d: (*x(3, 5, device=d), 2**62), "but c has only 5 elements"),
    "dtype of c": (lambda d: (x(5, device=d).long(), *x(2, 5, device=d), 5), "c has dtype Long, expected Float"),
    "dtype of a": (
        lambda d: (x(5, device=d), x(5, device=d).half(), x(5, device=d), 5),
        "a has dtype Half, expected F",
    ),
    "dtype of b": (lambda d: (x(5, device=d), x(5, device=d), x(5, device=d).double(), 5), "b has dtype Double, exp"),
    "c is strided": (lambda d: (x(5, 2, device=d)[:, 0], *x(2, 5, device=d), 5), "c .* is not contiguous"),
    "c overlaps a": (lambda d: ((t := x(9, device=d))[1:], t[:8], x(8, device=d), 8), "c shares memory with a"),
    "c overlaps b": (lambda d: ((t := x(9, device=d))[:8], x(8, device=d), t[1:], 8), "c shares memory with b"),
    "c overlaps a strided a": (lambda d: ((t := x(16, device=d))[:8], t[::2], x(8, device=d), 8), "c shares memory"),
}


@pytest.mark.parametrize("case", LAUNCH, ids=LAUNCH)
def test_torch_launch_add2(device, case):
    import add2

    make, words = LAUNCH[case]
    c, a, b, n = make(device)
    before = [tensor.clone() for tensor in (c, a, b)]
    with pytest.raises(RuntimeError, match=f"torch_launch_add2: .*{words}"):
        add2.torch_launch_add2(c, a, b, n)
    for tensor, value in zip((c, a, b), before, strict=True):
        assert torch.equal(tensor, value)


def test_two_devices(cuda):
    import add2

    on_cpu, on_gpu = x(3), x(3, device=cuda)
    with pytest.raises(RuntimeError, match="add2: b is on cpu, expected cuda:0 like a"):
        add2.add2(on_gpu, on_cpu)
    with pytest.raises(RuntimeError, match="add2: b is on cuda:0, expected cpu like a"):
        add2.add2(on_cpu, on_gpu)
    with pytest.raises(RuntimeError, match="torch_launch_add2: a is on cpu, expected cuda:0 like c"):
        add2.torch_launch_add2(on_gpu, on_cpu, on_gpu, 3)
    torch.cuda.synchronize()


def test_correct_after_a_refusal(device):
    import add2

    a, b = torch.randn(2, 100, device=device)
    with pytest.raises(RuntimeError):
        add2.add2(a, b[1:])
    assert torch.equal(add2.add2(a, b), a + b)
