"""The training loop of train.py: epochs, their history, and the ways to run a step."""

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .. import cli
from . import processes
from .tasks import Add, Task


@dataclass
class History:
    """An entry for each epoch: the mean loss of its steps, the accuracy on the test images (if the task has some),
    microseconds a step."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    us_per_step: list[float] = field(default_factory=list)

    def steady_us_per_step(self) -> float:
        """The median, without the first tenth, in which caches fill, kernels are loaded and torch.compile compiles."""
        late = sorted(self.us_per_step[(len(self.us_per_step) + 9) // 10 :] or self.us_per_step)
        return late[len(late) // 2]


def train(task: Task, add: Add, device: torch.device, args: argparse.Namespace) -> Iterator[History]:
    """Train until args.epochs; yield the history after each epoch whose loss is printed."""
    torch.manual_seed(args.seed)  # on the CPU, before the network moves: the same numbers for every device
    network = task.network(add).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=task.lr, momentum=task.momentum)
    history = History()
    if args.save:
        from . import checkpoint
    if args.resumed:
        network.load_state_dict(args.resumed["network"])
        optimizer.load_state_dict(args.resumed["optimizer"])
        history = History(**args.resumed["history"])
    # reduce-overhead: on a GPU the compiled code is replayed as CUDA graphs, as most of a small step is launches.
    # fullgraph: a graph break is an error.
    called = torch.compile(network, fullgraph=True, mode="reduce-overhead") if args.compile else network
    called = nn.parallel.DistributedDataParallel(called) if processes.WORLD > 1 else called
    autocast = torch.autocast(device.type, torch.bfloat16) if args.dtype == "bfloat16" else contextlib.nullcontext()

    def step(*batch) -> Tensor:
        optimizer.zero_grad()
        with autocast:
            loss = task.loss(called, *batch)
        (loss * processes.WORLD).backward()  # DistributedDataParallel takes the mean over the processes, we the sum
        optimizer.step()
        return loss.detach().clone() if args.compile else loss.detach()  # a replayed graph writes the next loss there

    if args.cuda_graph:
        step = captured(step, network)
    done = len(history.losses)
    for epochs in _portions(done, args.epochs, 1 if args.save else task.every):
        run(step, task, epochs, device, history)
        if task.accuracy:
            history.accuracies.append(task.accuracy(network))
        if args.save and processes.RANK == 0:
            checkpoint.save(args.save, settings(args), network, optimizer, vars(history))
        yield history
    if done >= args.epochs:
        cli.note(f"{args.resume} has all of its {done} epochs; a larger --epochs goes on")
        yield history


def settings(args: argparse.Namespace) -> dict:
    """The options that decide the losses. A run is resumed only with the same."""
    return {name: getattr(args, name) for name in ("model", "seed", "batch", "dtype")}


def _portions(first: int, end: int, every: int) -> Iterator[range]:
    """Epochs first to end, cut after each that is printed: the multiples of `every`, and the last."""
    while first < end:
        last = min(-(-first // every) * every + 1, end)
        yield range(first, last)
        first = last


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run(step: Callable[..., Tensor], task: Task, epochs: range, device: torch.device, history: History) -> None:
    """Train these epochs, and append them to the history.

    The losses are fetched at the end and not one by one: .item() makes the host wait for the GPU.
    """
    _synchronize(device)
    start = time.perf_counter()
    losses = [[step(*batch) for batch in task.batches(epoch)] for epoch in epochs]
    _synchronize(device)
    seconds = time.perf_counter() - start
    means = [torch.stack(steps).double().mean() for steps in losses]
    if processes.WORLD > 1:  # each has its share of every batch's loss
        for mean in means:
            processes.add_up(mean)
    history.us_per_step += [seconds * 1e6 / sum(map(len, losses))] * len(epochs)
    history.losses += [mean.item() for mean in means]


def captured(step: Callable[[], Tensor], network: nn.Module) -> Callable[[], Tensor]:
    """A step without a batch as a CUDA graph: one call launches forward, backward and the optimizer.

    Everything that the step allocates lies in the graph's memory, so the loss is copied before the next replay.
    """
    before = [parameter.detach().clone() for parameter in network.parameters()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm-up, which torch.cuda.graph needs
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    with torch.no_grad():  # a captured step has not run, but the warm-up's have
        for parameter, value in zip(network.parameters(), before, strict=True):
            parameter.copy_(value)

    def replay() -> Tensor:
        graph.replay()
        return loss.clone()

    return replay


def make_deterministic() -> None:
    """The same bits from run to run on a GPU, too. Call it before CUDA starts: cuBLAS reads its variable then."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a help to find mistakes, which takes time


def difference(ours: History, torchs: History, epochs: int | None = None) -> float:
    """The largest relative difference of the losses in the first epochs; 0 if they are the same, bit for bit."""
    pairs = zip(ours.losses[:epochs], torchs.losses[:epochs], strict=True)
    return max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)
