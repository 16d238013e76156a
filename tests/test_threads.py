"""The operator in many threads at once, which free-threaded Python (3.13t, 3.14t) lets run at the same time."""

import sys
import sysconfig
import threading

import pytest
import torch

THREADS, CALLS = 8, 100


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded Python")
def test_threads(add2, device):
    """Values and gradients are right. Loading the library has not switched the lock on again, as an extension module
    without a word on the matter does."""
    start, wrong = threading.Barrier(THREADS), []

    def work(seed):
        a, b = torch.randn(2, 1000, generator=torch.Generator().manual_seed(seed)).to(device)
        a.requires_grad_()
        grad = torch.full_like(b, seed)
        start.wait()
        for _ in range(CALLS):
            c = add2.add2(a, b)
            found = torch.autograd.grad(c, a, grad)[0]
            add2.torch_launch_add2(written := torch.empty_like(b), a.detach(), b, b.numel())
            if not (torch.equal(c, a + b) and torch.equal(found, grad) and torch.equal(written, c)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not sys._is_gil_enabled()
