"""The operator in its surroundings: autocast, inference, profiler, CUDA graphs, threads, processes, memory."""

import multiprocessing
import os
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


def pair(device, n=1000):
    return torch.randn(n, device=device), torch.randn(n, device=device)


def test_threads(add2, device):
    """Several Python threads at once, each with its own tensors (and on a GPU its own stream)."""

    def work(seed):
        generator = torch.Generator(device).manual_seed(seed)
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream):
            for n in range(1, 200):
                a, b = (torch.randn(100 * n, device=device, generator=generator) for _ in range(2))
                assert torch.equal(add2.add2(a, b), a + b)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [None] * 8


def test_forked_process(add2):
    """A fork of a process that has already used the thread pool; as a DataLoader's worker, it starts no threads."""
    a = torch.ones(10_000_000)
    add2.add2(a, a)

    def work():
        torch.set_num_threads(1)
        os._exit(int(add2.add2(a, a)[-1]))

    worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    worker.start()
    worker.join(60)
    assert worker.exitcode == 2


DTENSOR = """
import os, sys, torch, torch.distributed as dist
torch.ops.load_library(sys.argv[1])
import add2
assert "torch.distributed.tensor" not in sys.modules
def main(rank, store):
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    a, b = torch.arange(24.0).view(4, 6), torch.ones(4, 6)
    for place in (Shard(0), Shard(1), Replicate()):
        x, y = (distribute_tensor(t, mesh, [place]).requires_grad_() for t in (a, b))
        c = add2.add2(x, y)
        assert c.placements == (place,), c.placements
        assert torch.equal(c.full_tensor(), a + b)
        c.sum().backward()
        assert torch.equal(x.grad.full_tensor(), torch.ones(4, 6))
    c = add2.add2(distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)]))
    assert torch.equal(c.full_tensor(), a + b)
    dist.destroy_process_group()
if os.fork() == 0:
    main(1, sys.argv[2])
    os._exit(0)
main(0, sys.argv[2])
assert os.wait()[1] == 0
print("done")
"""


def test_dtensor(library, run, tmp_path):
    """Sharded over two processes: the placement stays, and so does the gradient's. `import add2` imports no DTensor."""
    done = run("-c", DTENSOR, library, tmp_path / "store", CUDA_VISIBLE_DEVICES="")
    assert done.stdout.endswith("done\n")


def test_profiler(add2, device):
    """The operator, and on a GPU the kernel, appear under their names."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    a, b = pair(device)
    with torch.profiler.profile(activities=activities) as profile:
        c = add2.add2(a, b)
        add2.torch_launch_add2(c, a, b, c.numel())
        if device == "cuda":
            torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert "add2::add2" in names
    assert "add2::torch_launch_add2" in names
    if device == "cuda":
        assert any("add2_vector<float" in name for name in names), names


def test_memory_of_the_result_alone(add2, cuda):
    a, b = pair(cuda, n=2**20)
    add2.add2(a, b)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, blocks = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"]
    c = add2.add2(a, b)
    assert torch.cuda.max_memory_allocated() - before == c.nbytes
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == blocks + 1
    add2.torch_launch_add2(c, a, b, c.numel())
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == blocks + 1


def test_no_leak(add2):
    """A thousand calls, each with a gradient and a refused one: the process does not grow by their results' 40 MB."""
    a, b = torch.randn(2, 10_000).requires_grad_()
    peaks = []
    for calls in (200, 1000):
        for _ in range(calls):
            add2.add2(a, b).sum().backward(retain_graph=True)
            with pytest.raises(RuntimeError):
                add2.add2(a, b[1:])
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert peaks[1] - peaks[0] < 20_000  # KiB
