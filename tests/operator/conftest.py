"""The operator's own tests, in one process with one build: jit, or what --build or --library say. Made to be copied."""

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(scope="session", autouse=True)
def loaded(add2):
    """For the tests that call torch.ops.add2."""


@pytest.fixture
def library(build):
    """The build's library, for a process of its own."""
    return build.library


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=["add2", "torch_launch_add2"])
def add(request, add2):
    """Both ways to add, as one function of a and b that returns the result."""

    def launch(a, b):
        c = torch.full(a.shape, float("nan"), dtype=a.dtype, device=a.device)
        assert add2.torch_launch_add2(c, a, b, a.numel()) is None
        return c

    return add2.add2 if request.param == "add2" else launch


@pytest.fixture(params=["add2", "add2.ops", "torch.ops.add2"])
def lane(request, add2):
    """The functions, as an object with add2 and torch_launch_add2: Python's, these without add2/fast.py, and the
    operators themselves."""
    return {"add2": add2, "add2.ops": add2.ops, "torch.ops.add2": torch.ops.add2}[request.param]
