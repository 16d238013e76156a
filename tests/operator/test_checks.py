"""Wrong calls that tests/test_contract.py does not make, and tensors that are no plain ones."""

import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from test_values import INTEGERS
from torch import ones


@pytest.mark.filterwarnings("ignore:.*quantize.*")
def test_foreign_tensors(lane, device):
    a = ones(3, 3, device=device)
    for b in (a.to_sparse(), torch.quantize_per_tensor(ones(3, 3), 0.1, 0, torch.qint8)):
        for call in (lane.add2, lambda a, b: lane.torch_launch_add2(a, a, b, 9)):
            for inputs in ((a, b), (b, a), (a.clone().requires_grad_(), b)):
                with pytest.raises((RuntimeError, NotImplementedError)):
                    call(*inputs)


def test_output_that_requires_grad(lane, device):
    """As torch.add(out=c) does: writing into a tensor is not differentiable, so it is refused where it would count."""
    for wants in range(3):
        arguments = [ones(5, device=device, requires_grad=index == wants) for index in range(3)]
        with pytest.raises(RuntimeError, match="requires grad"):
            lane.torch_launch_add2(*arguments, 5)
        with torch.no_grad(), torch.autograd.forward_ad.dual_level():  # a level without a tangent is no reason
            lane.torch_launch_add2(*arguments, 5)


def test_inference_tensor(lane, device):
    """Written only in inference mode, as by torch.add(out=c); the inputs may be inference tensors anywhere."""
    with torch.inference_mode():
        c, x = torch.zeros(2, 5, device=device)
        assert lane.add2(x, x).is_inference()
        lane.torch_launch_add2(c, x, x, 5)
    a = ones(5, device=device)
    for inputs in (a, x):
        for context in (torch.enable_grad(), torch.no_grad()):
            with context, pytest.raises(RuntimeError, match="inference"):
                lane.torch_launch_add2(c, inputs, inputs, 5)
    assert torch.equal(c, x)
    lane.torch_launch_add2(a, x, x, 5)
    assert torch.equal(a, lane.add2(x, x))


def test_n_that_is_no_number_of_elements(add2, device):
    for n in (None, 1.5, "3", torch.tensor(2.7)):
        with pytest.raises(TypeError):
            add2.torch_launch_add2(*ones(3, 5, device=device), n)
    for n in (-1, 6, 2**63, 2**70, -(2**63) - 1):
        with pytest.raises(RuntimeError, match=f"n is {n}, expected 0 to 5"):
            add2.torch_launch_add2(*ones(3, 5, device=device), n)
    add2.torch_launch_add2(*ones(3, 5, device=device), torch.tensor(3))


def test_pending_minus_sign(lane, device):
    """A view whose sign torch has not applied yet: resolved, for an input and for the result."""
    a, b = ones(2, 5, device=device)
    for context in (torch.enable_grad(), torch.inference_mode()):
        with context:
            c = torch._neg_view(torch.zeros_like(a))
            for n in (5, 3):
                lane.torch_launch_add2(c.zero_(), a, b, n)
                assert torch.equal(c[:n], (a + b)[:n])
                assert torch.equal(c[n:], torch.zeros_like(c[n:]))
            with pytest.raises(RuntimeError, match="n is 6"):
                lane.torch_launch_add2(c, a, b, 6)
    assert torch.equal(lane.add2(torch._neg_view(a), torch._neg_view(b)), -(a + b))
    lane.torch_launch_add2(a, torch._neg_view(b), b, 5)
    assert torch.equal(a, torch.zeros_like(a))
    c = torch._neg_view(a)
    lane.torch_launch_add2(c, c, b, 5)
    assert torch.equal(a, -b)


def test_tensor_without_memory(add2, device):
    """Zeros that torch has not stored anywhere: such a tensor's type and layout are the usual ones."""
    a = ones(4, device=device)
    zeros = torch._efficientzerotensor(4, device=device)
    assert torch.equal(add2.add2(a, zeros), a)
    with pytest.raises(RuntimeError, match="immutable"):
        add2.torch_launch_add2(zeros, a, a, 4)


def test_tensor_whose_memory_was_freed(add2, device):
    """As FSDP does with parameters that are not needed now. Strided or not."""
    for freed in (ones(2, 3, device=device), ones(3, 2, device=device).t()):
        freed.untyped_storage().resize_(0)
        a, c = ones(2, 2, 3, device=device)
        calls = [lambda t=freed, a=a: add2.add2(t, a), lambda t=freed, a=a: add2.add2(a, t)]
        calls += [lambda t=freed, a=a, c=c: add2.torch_launch_add2(c, t, a, 6)]
        calls += [lambda t=freed, a=a: add2.torch_launch_add2(t, a, a, 6)] * freed.is_contiguous()
        for call in calls:
            with pytest.raises(RuntimeError, match="a tensor has no memory"):
                call()


VIEWS = {
    "as is": lambda x: x,
    "transposed": lambda x: x.movedim(0, -1) if x.dim() else x,
    "expanded": lambda x: x.expand(2, *x.shape),
    "every other": lambda x: x[::2] if x.dim() else x,
    "number": lambda x: 2.0,
}


def agree(a, *others):
    return all(isinstance(x, torch.Tensor) and x.dtype in INTEGERS and x.dtype == a.dtype for x in (a, *others))


def test_random_calls(add2, device):
    """A call is either right, and then computes what torch computes, or refused."""
    chance = random.Random(0)
    for _ in range(2000):
        dtypes = chance.choices([*INTEGERS, torch.int64, torch.complex64], k=chance.choice([1, 1, 1, 3]))
        shapes = [
            [chance.randrange(5) for _ in range(dim)] for dim in chance.choices(range(4), k=chance.choice([1, 2]))
        ]
        c, a, b = (ones(chance.choice(shapes), dtype=chance.choice(dtypes), device=device) for _ in range(3))
        c, a, b = (VIEWS[chance.choice([*["as is"] * 6, *VIEWS])](x) for x in (c, a, b))
        n = chance.randint(-2, 10)
        if agree(a, b) and a.shape == b.shape:
            assert torch.equal(add2.add2(a, b), a + b)
        else:
            with pytest.raises((RuntimeError, TypeError)):
                add2.add2(a, b)
        if agree(c, a, b) and 0 <= n <= min(x.numel() for x in (c, a, b)) and c.is_contiguous():
            add2.torch_launch_add2(c, a, b, n)
            assert torch.equal(c.flatten()[:n], a.flatten()[:n] + b.flatten()[:n])
        else:
            with pytest.raises((RuntimeError, TypeError)):
                add2.torch_launch_add2(c, a, b, n)


def test_has_cuda(add2, library):
    """Programs ask it whether a GPU can be used."""
    assert torch.ops.add2.has_cuda() == (b"launch_add2_cuda" in library.read_bytes())


def test_library_of_another_version(add2, library, run, tmp_path):
    """Two installations in one process: Python files of one must not drive the library of the other."""
    folder = shutil.copytree(Path(add2.__file__).parent, tmp_path / "add2", ignore=shutil.ignore_patterns("*.so"))
    text = (folder / "__init__.py").read_text()
    assert add2.__version__ in text
    (folder / "__init__.py").write_text(text.replace(add2.__version__, "99.0"))
    code = (
        f"import torch; torch.ops.load_library({str(library)!r})\ntry: import add2\nexcept ImportError as e: print(e)"
    )
    said = run("-c", code, cwd=tmp_path).stdout
    assert re.search(f"add2 99.0 cannot use .* {add2.__version__}: build it again", said)
