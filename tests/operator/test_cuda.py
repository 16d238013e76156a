"""On a GPU: the caller's stream and the tensors' device, not stream 0 of device 0."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


def test_does_not_wait(add2, cuda):
    """A call returns while the GPU is still busy with what was queued before."""
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


FRESH_THREAD = """
import sys, threading, torch
torch.ops.load_library(sys.argv[1])
import add2
left, made = threading.Event(), threading.Event()
def work():
    with torch.cuda.device(1):
        torch.ones(1, device="cuda:1")
    left.set()  # torch has noted GPU 0, but does not set it: nothing has used it yet
    made.wait()
    assert torch.cuda.current_device() == 0
    add2.torch_launch_add2(c, a, b, a.numel())
thread = threading.Thread(target=work)
thread.start()
left.wait()
a, b, c = torch.ones(3, 1000, device="cuda:0")
torch.cuda.synchronize(0)
made.set()
thread.join()
torch.cuda.synchronize(0)
torch.cuda.synchronize(1)
assert (c == 2).all()
print("done")
"""


def test_device_that_torch_has_only_noted(library, run, cuda):
    """In a fresh thread torch may call a GPU current that CUDA does not."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert run("-c", FRESH_THREAD, library).stdout == "done\n"


def test_autograd_thread_on_another_device(add2, cuda):
    def gradient():
        a = torch.randn(1000, device=f"cuda:{torch.cuda.device_count() - 1}", requires_grad=True)
        (add2.add2(a, a) * 3).sum().backward()
        return a.grad

    with ThreadPoolExecutor() as pool:
        assert (pool.submit(gradient).result() == 6).all()
