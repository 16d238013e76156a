"""Wrong calls are refused before anything is written, and say what was found and what was expected."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def x(*shape, dtype=torch.float32, device="cpu"):
    return torch.ones(*shape, dtype=dtype, device=device)


# what is wrong: the inputs for add2(a, b), words of the message
ADD2 = {
    "shape": (lambda d: (x(3, device=d), x(4, device=d)), r"b has shape \[4\], expected \[3\]"),
    "dimensions": (lambda d: (x(2, 3, device=d), x(6, device=d)), r"b has shape \[6\], expected \[2, 3\]"),
    "broadcast": (lambda d: (x(2, 3, device=d), x(3, device=d)), r"b has shape \[3\], expected \[2, 3\]"),
    "dtype of b": (lambda d: (x(3, device=d), x(3, device=d).double()), "b is float64, expected float32"),
    "integers": (lambda d: (x(3, device=d).int(), x(3, device=d).int()), "the dtype is not float32"),
    "complex": (lambda d: (x(3, device=d).cfloat(),) * 2, "the dtype is not float32"),
    "bool": (lambda d: (x(3, device=d).bool(),) * 2, "the dtype is not float32"),
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
    "n is negative": (lambda d: (*x(3, 5, device=d), -1), "n is -1, expected 0 to 5, all of c"),
    "n is too large for c": (lambda d: (x(4, device=d), *x(2, 5, device=d), 5), "n is 5, expected 0 to 4, all of c"),
    "n is too large for a": (
        lambda d: (x(6, device=d), x(5, device=d), x(6, device=d), 6),
        "expected 0 to 5, all of a",
    ),
    "n is too large for b": (
        lambda d: (x(6, device=d), x(6, device=d), x(0, device=d), 6),
        "expected 0 to 0, all of b",
    ),
    "n beyond 2^62": (lambda d: (*x(3, 5, device=d), 2**62), "expected 0 to 5, all of c"),
    "dtype of c": (lambda d: (x(5, device=d).long(), *x(2, 5, device=d), 5), "the dtype is not float32.*argument c"),
    "dtype of a": (
        lambda d: (x(5, device=d), x(5, device=d).half(), x(5, device=d), 5),
        "a is float16, expected float32",
    ),
    "dtype of b": (
        lambda d: (x(5, device=d), x(5, device=d), x(5, device=d).double(), 5),
        "b is float64, expected float32",
    ),
    "c is strided": (lambda d: (x(5, 2, device=d)[:, 0], *x(2, 5, device=d), 5), r"c of shape \[5\] is not contiguous"),
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
    with pytest.raises(RuntimeError, match=f"add2: .*{words}"):
        add2.torch_launch_add2(c, a, b, n)
    for tensor, value in zip((c, a, b), before, strict=True):
        assert torch.equal(tensor, value)


def test_two_devices(cuda):
    import add2

    on_cpu, on_gpu = x(3), x(3, device=cuda)
    with pytest.raises(RuntimeError, match="add2: b is on cpu, expected cuda:0"):
        add2.add2(on_gpu, on_cpu)
    with pytest.raises(RuntimeError, match="add2: b is on cuda:0, expected cpu"):
        add2.add2(on_cpu, on_gpu)
    with pytest.raises(RuntimeError, match="add2: a is on cpu, expected cuda:0"):
        add2.torch_launch_add2(on_gpu, on_cpu, on_gpu, 3)
    torch.cuda.synchronize()


def test_meta_refuses_what_the_kernel_refuses(device):
    """The same calls with data and without: the same is refused, in the same words (but for a dtype's name)."""
    import add2

    def calls(device):
        t, half = x(9, device=device), x(9, device=device).half()
        eighth = t.to(torch.float8_e5m2)
        yield "the dtype is not float32, float64", lambda: add2.add2(eighth, eighth)
        yield "the dtype is not float32, float64", lambda: add2.torch_launch_add2(eighth, eighth, eighth, 9)
        yield "b is float16, expected float32", lambda: add2.add2(t, half)
        yield r"b has shape \[8\], expected \[9\]", lambda: add2.add2(t, t[1:])
        yield "n is 10, expected 0 to 9, all of c", lambda: add2.torch_launch_add2(t, t, t, 10)
        yield "n is -1, expected 0 to 9, all of c", lambda: add2.torch_launch_add2(t, t, t, -1)
        yield r"c of shape \[5\] is not contiguous", lambda: add2.torch_launch_add2(t[::2], t, t, 3)
        yield "c shares memory with a, but is not a itself", lambda: add2.torch_launch_add2(t[1:], t, t, 3)
        yield "c shares memory with b", lambda: add2.torch_launch_add2(t[:4], t[4:8], t[::2], 3)
        yield None, lambda: add2.torch_launch_add2(t[:4], t[4:], t[:4], 3)
        yield None, lambda: add2.torch_launch_add2(t, t, t, 9)

    for (words, call), (_, on_meta) in zip(calls(device), calls("meta"), strict=True):
        for each in (call, on_meta):
            if words is None:
                each()
            else:
                with pytest.raises(RuntimeError, match=f"add2: {words}"):
                    each()


def sparse(device):
    return x(3, 3, device=device).to_sparse()


# what is no argument at all: b for add2(a, b) and torch_launch_add2(c, a, b, n), the error's type
FOREIGN = {
    "None": (lambda d: None, TypeError),
    "a Python number": (lambda d: 1.0, TypeError),
    "a list": (lambda d: [1.0, 1.0], TypeError),
    "sparse": (lambda d: sparse(d), (RuntimeError, NotImplementedError)),
    "quantized": (
        lambda d: torch.quantize_per_tensor(x(3, 3), 0.1, 0, torch.qint8),
        (RuntimeError, NotImplementedError),
    ),
    "meta": (lambda d: x(3, 3, device="meta"), RuntimeError),
}


@pytest.mark.filterwarnings("ignore:.*quantize.*")
@pytest.mark.parametrize("case", FOREIGN, ids=FOREIGN)
@pytest.mark.parametrize("position", [0, 1])
def test_foreign_arguments(device, case, position):
    import add2

    make, kind = FOREIGN[case]
    arguments = [x(3, 3, device=device), x(3, 3, device=device)]
    arguments[position] = make(device)
    with pytest.raises(kind):
        add2.add2(*arguments)
    with pytest.raises(kind):
        add2.torch_launch_add2(x(3, 3, device=device), *arguments, 9)
    with pytest.raises(kind):
        add2.torch_launch_add2(make(device), x(3, 3, device=device), x(3, 3, device=device), 9)


def test_output_that_requires_grad(device):
    """As torch.add(out=c) does: writing into a tensor is not differentiable, so it is refused where it would count."""
    import add2

    c, a, b = x(3, 5, device=device)
    for launch in (add2.torch_launch_add2, torch.ops.add2.torch_launch_add2):
        for wants in range(3):
            arguments = [tensor.clone().requires_grad_(index == wants) for index, tensor in enumerate((c, a, b))]
            with pytest.raises(RuntimeError, match="requires grad"):
                launch(*arguments, 5)
            with torch.no_grad():
                launch(*arguments, 5)


def test_inference_tensor(lane, device):
    """Written only in inference mode, as by torch.add(out=c); the inputs may be inference tensors anywhere."""
    with torch.inference_mode():
        c, x = torch.zeros(2, 5, device=device)
        lane.torch_launch_add2(c, x, x, 5)
    a = torch.ones(5, device=device)
    for inputs in (a, x):
        for context in (torch.enable_grad(), torch.no_grad()):
            with context, pytest.raises(RuntimeError, match="inference"):
                lane.torch_launch_add2(c, inputs, inputs, 5)
    assert torch.equal(c, x)
    lane.torch_launch_add2(a, x, x, 5)
    assert torch.equal(a, lane.add2(x, x))


def test_forward_derivative_is_refused(device):
    """A tangent would be lost without a word: torch_launch_add2 has no derivative in any direction."""
    import add2

    c, a, b = x(3, 5, device=device)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, b)
        for launch in (add2.torch_launch_add2, torch.ops.add2.torch_launch_add2):
            with pytest.raises(RuntimeError, match="no derivative"):
                launch(c, dual, b, 5)


def test_no_tensor_beside_one_that_requires_grad(device):
    import add2

    a = x(5, device=device).requires_grad_()
    with pytest.raises(TypeError, match=r"expected (two|three) tensors"):
        add2.add2(a, 1.0)
    with pytest.raises(TypeError, match=r"expected (two|three) tensors"):
        add2.torch_launch_add2(x(5, device=device), a, None, 5)


def test_n_that_is_no_number_of_elements(device):
    import add2

    for n in (None, 1.5, "3", torch.tensor(2.7)):
        with pytest.raises(TypeError):
            add2.torch_launch_add2(*x(3, 5, device=device), n)
    for n in (2**63, 2**70, -(2**63) - 1):
        with pytest.raises(RuntimeError, match=f"n is {n}, expected 0 to 5"):
            add2.torch_launch_add2(*x(3, 5, device=device), n)
    add2.torch_launch_add2(*x(3, 5, device=device), torch.tensor(3))


def test_pending_minus_sign(device):
    """A view whose sign torch has not applied yet: resolved, for an input and for the result."""
    import add2
    from add2 import ops

    a, b = x(2, 5, device=device)
    for context in (torch.enable_grad(), torch.inference_mode()):
        for launch in (add2.torch_launch_add2, ops.torch_launch_add2):
            with context:
                c = torch._neg_view(torch.zeros_like(a))
                launch(c, a, b, 5)
                assert torch.equal(c, a + b)
    add2.torch_launch_add2(a, torch._neg_view(b), b, 5)
    assert torch.equal(a, torch.zeros_like(a))


def test_tensor_without_memory(device):
    """Zeros that torch has not stored anywhere: such a tensor's type and layout are the usual ones."""
    import add2

    a = x(4, device=device)
    zeros = torch._efficientzerotensor(4, device=device)
    assert torch.equal(add2.add2(a, zeros), a)
    with pytest.raises(RuntimeError, match="immutable"):
        add2.torch_launch_add2(zeros, a, a, 4)


def test_tensor_whose_memory_was_freed(device):
    """As FSDP does with parameters that are not needed now. Strided or not."""
    import add2

    for freed in (x(2, 3, device=device), x(3, 2, device=device).t()):
        freed.untyped_storage().resize_(0)
        a, c = x(2, 3, device=device), x(2, 3, device=device)
        calls = [lambda t=freed, a=a: add2.add2(t, a), lambda t=freed, a=a: add2.add2(a, t)]
        calls += [lambda t=freed, a=a, c=c: add2.torch_launch_add2(c, t, a, 6)]
        calls += [lambda t=freed, a=a: add2.torch_launch_add2(t, a, a, 6)] * freed.is_contiguous()
        for call in calls:
            with pytest.raises(RuntimeError, match="a tensor has no memory"):
                call()


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@st.composite
def tensors(draw, device):
    """Any small tensor: of any of the dtypes, strided or not, perhaps no tensor at all."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    made = torch.ones(shape, dtype=dtype, device=device)
    kind = draw(st.sampled_from(["as is", "as is", "transposed", "expanded", "every other", "None", "number"]))
    if kind == "transposed":
        return made.movedim(0, -1) if made.dim() else made
    if kind == "expanded":
        return made.expand(2, *made.shape)
    if kind == "every other":
        return made[::2] if made.dim() else made
    return {"as is": made, "None": None, "number": 2.0}[kind]


def acceptable(a, b):
    both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return both and a.shape == b.shape and a.dtype == b.dtype and a.dtype in DTYPES[:4]


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_calls_of_add2(device, data):
    """A call is either right, and then computes what torch computes, or refused."""
    import add2

    a, b = data.draw(tensors(device)), data.draw(tensors(device))
    if acceptable(a, b):
        assert torch.equal(add2.add2(a, b), a + b)
    else:
        with pytest.raises((RuntimeError, TypeError)):
            add2.add2(a, b)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_calls_of_torch_launch_add2(device, data):
    import add2

    c, a, b = (data.draw(tensors(device)) for _ in range(3))
    n = data.draw(st.integers(-2, 10))
    arguments = (c, a, b)
    good = all(isinstance(tensor, torch.Tensor) for tensor in arguments)
    good = good and c.dtype == a.dtype == b.dtype and c.dtype in DTYPES[:4]
    good = good and 0 <= n <= min(tensor.numel() for tensor in arguments) and c.is_contiguous()
    if good:
        add2.torch_launch_add2(c, a, b, n)
        assert torch.equal(c.flatten()[:n], (a.flatten()[:n] + b.flatten()[:n]))
    else:
        with pytest.raises((RuntimeError, TypeError)):
            add2.torch_launch_add2(c, a, b, n)
