"""On a GPU: the caller's stream and the tensors' device, not stream 0 of device 0."""

import pytest
import torch


def test_runs_on_the_current_stream(add, cuda):
    """The inputs are written on a side stream after a long wait; only a launch on that stream reads them written."""
    side = torch.cuda.Stream()
    a, b = torch.zeros(2, 2**20, device=cuda)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        a += 1
        b += 2
        c = add(a, b)
    side.synchronize()
    assert (c == 3).all()


def test_does_not_wait(cuda):
    """A call returns while the GPU is still busy with what was queued before."""
    import add2

    a, b, c = torch.ones(3, 1024, device=cuda)
    add2.torch_launch_add2(c, a, b, 1024)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    add2.torch_launch_add2(c, a, b, 1024)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_device_that_is_not_current(add, cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = torch.randn(2, 10_001, device="cuda:1")
    assert torch.cuda.current_device() == 0
    assert torch.equal(add(a, b), a + b)
    assert torch.cuda.current_device() == 0
