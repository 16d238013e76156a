"""The GPU trials without a GPU: their logic, with stand-ins for streams, events and CUDA graphs on a CPU.

tests/test_referee_plants.py has the referee find planted faults on a GPU.
"""

import contextlib

import pytest
import torch
from referee_plants import PLANTS, multiply, product
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lab.referee import gpu
from lab.referee.trial import Wrong

CLEAN = PLANTS["drops_nan"].twin


class Stream:
    """Work that is queued is done at once; `is_busy` says that the stream still sleeps."""

    is_busy = False
    synchronize = wait_stream = record_stream = lambda self, *_: None


class Event:
    record = lambda self: None  # noqa: E731

    def query(self):
        return not Stream.is_busy


class Recorder(TorchDispatchMode):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, results))
        return results


class Graph:
    """Notes calls below autograd, and repeats them into the tensors that they returned."""

    is_capturing = False

    def __init__(self):
        self.calls = []

    @contextlib.contextmanager
    def capture(self):
        Graph.is_capturing = True
        with Recorder(self.calls):
            yield
        Graph.is_capturing = False

    def replay(self):
        """The host's decisions are those of the capture."""
        Graph.is_capturing = True
        with torch.no_grad():
            for function, args, kwargs, results in self.calls:
                for old, new in zip(tree_leaves(results), tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
        Graph.is_capturing = False


def fall_asleep(cycles):
    Stream.is_busy = True


def wake_up(*_):
    Stream.is_busy = False


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    found = dict(
        Stream=Stream,
        Event=Event,
        CUDAGraph=Graph,
        graph=lambda graph: graph.capture(),
        stream=lambda stream: contextlib.nullcontext(),
        current_stream=Stream,
        synchronize=wake_up,
        _sleep=fall_asleep,
        empty_cache=lambda: None,
        is_current_stream_capturing=lambda: Graph.is_capturing,
    )
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(gpu, "ELEMENTS", 2**12)
    wake_up()


ON_STREAMS = [
    gpu.late_inputs_are_waited_for,
    gpu.late_gradient_is_waited_for,
    gpu.result_is_ready_for_its_stream,
    gpu.freed_inputs_may_be_reused,
    gpu.work_is_in_the_call,
]


@pytest.mark.parametrize("trial", ON_STREAMS)
def test_right_on_streams(trial):
    trial(CLEAN, "cpu")


@pytest.mark.parametrize("has_backward", [False, True])
def test_right_without_waiting(has_backward):
    gpu.host_goes_on(CLEAN, "cpu", has_backward)


@pytest.mark.parametrize("has_backward", [False, True])
def test_right_in_a_graph(has_backward):
    gpu.replay_reads_new_contents(CLEAN, "cpu", has_backward)


@pytest.mark.parametrize("group", [None, "all of size 3"])
def test_right_with_old_memory(group):
    gpu.freed_memory_does_not_matter(CLEAN, "cpu", group, 5)


def waits(a, b):
    torch.cuda.synchronize()
    return product(a, b)


def takes_the_last_result(a, b):
    key = (a.shape, b.shape, a.dtype)
    if not Graph.is_capturing:
        LAST[key] = product(a, b)
    return LAST[key].clone()


LAST, CACHE = {}, {}


def cached(a, b):
    key = (a.data_ptr(), b.data_ptr(), a.shape)
    if key not in CACHE:
        CACHE[key] = product(a, b)
    return CACHE[key].clone()


def test_waiting_is_noticed():
    operator = multiply("stand_in_waits", kernel=waits)
    with pytest.raises(Wrong, match="the host waits"):
        gpu.host_goes_on(operator, "cpu", has_backward=False)


def test_a_result_that_a_graph_does_not_compute_is_noticed():
    operator = multiply("stand_in_captured", kernel=takes_the_last_result)
    with pytest.raises(Wrong, match="a CUDA graph, replayed"):
        gpu.replay_reads_new_contents(operator, "cpu", has_backward=False)


def test_a_cache_is_noticed():
    operator = multiply("stand_in_cached", kernel=cached)
    with pytest.raises(Wrong, match="of a series"):
        gpu.work_is_in_the_call(operator, "cpu")
