"""What train.py trains, and what comes of it: a task, its history, and the ways to run a step."""

import argparse
import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from . import clock, picture, processes, report
from .record import write

Add = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Task:
    """A network, its data and its loss."""

    name: str
    network: Callable[[Add], nn.Module]
    batches: Callable[[int], Iterable[tuple]]  # of an epoch: what loss() takes, this process's share of each batch
    loss: Callable[..., Tensor]  # of the network and a batch, such that the sum over the processes is the batch's loss
    accuracy: Callable[[nn.Module], float] | None
    lr: float
    momentum: float
    every: int  # tell the loss once in so many epochs


@dataclass
class History:
    """A list has an entry for each epoch: the mean loss of its steps, the share of the test part that was right (if
    the task has one), microseconds a step."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    us_per_step: list[float] = field(default_factory=list)

    def steady_us_per_step(self) -> float:
        """The median, without the first tenth, in which caches fill, kernels are loaded and torch.compile compiles."""
        late = sorted(self.us_per_step[(len(self.us_per_step) + 9) // 10 :] or self.us_per_step)
        return late[len(late) // 2]

    def as_dict(self) -> dict[str, list[float]]:
        return dataclasses.asdict(self)


def portions(first: int, end: int, every: int) -> Iterator[range]:
    """Epochs first to end, cut after each that is told: the multiples of `every`, and the last."""
    while first < end:
        last = min(-(-first // every) * every + 1, end)
        yield range(first, last)
        first = last


@contextlib.contextmanager
def timed(history: History, epochs: range, device: torch.device) -> Iterator[list[list[Tensor]]]:
    """Time what is done inside; it fills the list with the losses of each epoch's steps, which are fetched after it.

    Not one by one: .item() makes the host wait for the GPU.
    """
    losses: list[list[Tensor]] = []
    clock.synchronize(device)
    start = time.perf_counter()
    yield losses
    clock.synchronize(device)
    seconds = time.perf_counter() - start
    history.us_per_step += [seconds * 1e6 / sum(map(len, losses))] * len(epochs)
    for steps in losses:
        mean = torch.stack(steps).double().mean()
        if processes.WORLD > 1:
            processes.add_up(mean)  # of the shares the sum
        history.losses.append(mean.item())


def wrapped(network: nn.Module, compile: bool) -> nn.Module:
    """The network as it is called: compiled, without a graph break; and one of several processes.

    reduce-overhead: on a GPU the compiled code is replayed as CUDA graphs, as most of a small step is launches.
    """
    called = torch.compile(network, fullgraph=True, mode="reduce-overhead") if compile else network
    return nn.parallel.DistributedDataParallel(called) if processes.WORLD > 1 else called


def autocast(dtype: str, device: torch.device) -> contextlib.AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()


def captured(step: Callable[[], Tensor], network: nn.Module) -> Callable[[], Tensor]:
    """A step without a batch as a CUDA graph: forward, backward and the optimizer are launched by one call.

    Whatever the step allocates has its place in the graph's memory, so the loss is copied before the next replay.
    """
    before = [parameter.detach().clone() for parameter in network.parameters()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm-up, as torch.cuda.graph asks for it
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
    """The same bits from run to run on a GPU, too. To be called before CUDA starts: cuBLAS reads its variable then."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a help to find mistakes, which takes time


def tell(task: Task, history: History, epochs: int) -> None:
    """The last epoch's line, if it has one; and how far it is, on a terminal."""
    epoch, loss = len(history.losses) - 1, history.losses[-1]
    if epoch % task.every == 0:
        accuracy = f", accuracy = {history.accuracies[-1]:.1%}" if history.accuracies else ""
        report.show(f"epoch {epoch:3d}: loss = {loss:.3f}{accuracy}")
    if epoch + 1 < epochs:
        report.bar(epoch + 1, epochs, f"epochs, loss {loss:.3f}, {1e6 / history.us_per_step[-1]:.0f} steps/s")


def conclude(task: Task, histories: dict[str, History]) -> None:
    """A line for each add, and what one costs more than the other."""
    for name, history in histories.items():
        line = f"{task.name} by {name}: loss = {history.losses[-1]:.6g} after {len(history.losses)} epochs"
        line += f", accuracy = {history.accuracies[-1]:.1%}" if history.accuracies else ""
        each = history.steady_us_per_step()
        report.show(f"{line}; {each:.1f} us a step, {1e6 / each:.0f} steps/s")
    if len(histories) == 2:
        ours, torchs = histories.values()
        ratio = ours.steady_us_per_step() / torchs.steady_us_per_step()
        word = "the same, bit for bit"
        if not same(histories, exact=True):
            word = f"apart by {_apart(ours, torchs, 1):.1e} in the first epoch, {_apart(ours, torchs):.1e} at most"
        report.show(f"losses with add2 and with torch's own add: {word}; time a step: {ratio:.3f} of torch's")


def same(histories: dict[str, History], exact: bool) -> bool:
    """Whether the losses are: bit for bit; or, where torch.compile fuses torch's add with its neighbours and so rounds
    elsewhere, within a hundredth in the first epoch. Training makes the difference grow from step to step."""
    ours, torchs = histories.values()
    return ours.losses == torchs.losses if exact else _apart(ours, torchs, 1) < 0.01


def _apart(ours: History, torchs: History, epochs: int | None = None) -> float:
    pairs = zip(ours.losses[:epochs], torchs.losses[:epochs], strict=True)
    return max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)


def write_files(args: argparse.Namespace, content: dict, histories: dict[str, History]) -> None:
    """--json and --plot; of several processes, the first one's."""
    if processes.RANK:
        return
    content |= {"ways": {name: getattr(args, name) for name in ("compile", "cuda_graph", "check")}}
    content |= {"processes": processes.WORLD}
    content |= {"training": [{"add": name, **history.as_dict()} for name, history in histories.items()]}
    for row, history in zip(content["training"], histories.values(), strict=True):
        row["median_us_per_step"] = history.steady_us_per_step()
    if args.json:
        write(args.json, (json.dumps(content, indent=1) + "\n").encode())
    if args.plot and histories:
        write(args.plot, picture.render(picture.training(content), args.plot))
