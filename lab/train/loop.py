"""The training loop of train.py: epochs, their history, checkpoints, and the ways to run a step."""

import argparse
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .. import files
from ..bench import clock
from ..build import Failure
from .tasks import Add, Task


@dataclass
class History:
    """For each epoch: mean loss of its steps, accuracy on the test images (if there are some), us per step."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    us_per_step: list[float] = field(default_factory=list)

    def is_noisy(self) -> bool:
        """Whether the times cannot be trusted. The epochs that are timed together, a portion, have one time."""
        return clock.is_noisy(list(dict.fromkeys(self.us_per_step)))


def train(task: Task, add: Add, device: torch.device, args: argparse.Namespace) -> Iterator[History]:
    """Train until args.epochs; yield the history after every task.every epochs, and write the checkpoint then."""
    torch.manual_seed(args.seed)  # on the CPU, before the network moves: the same numbers for every device
    network = task.network(add).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=task.momentum)
    history = History()
    if args.resume and args.resume.exists():  # otherwise --save will write it
        history = resume(args, task, network, optimizer)
    # On a GPU, reduce-overhead replays CUDA graphs, as most of a small step is launches; fullgraph: no graph breaks.
    called = torch.compile(network, fullgraph=True, mode="reduce-overhead") if args.compile else network
    called = nn.parallel.DistributedDataParallel(called) if args.world > 1 else called
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bfloat16")

    def step(*batch) -> Tensor:
        optimizer.zero_grad()
        with autocast:
            loss = task.loss(called, *batch)
        (loss * args.world).backward()  # DistributedDataParallel takes the mean over the processes, we the sum
        optimizer.step()
        return loss.detach().clone() if args.compile else loss.detach()  # a replayed graph writes the next loss there

    if len(history.losses) == args.epochs:  # a finished run, started again
        save(args, network, optimizer, history)
        yield history
    if args.cuda_graph:
        step = captured(step, network)
    while (done := len(history.losses)) < args.epochs:
        end = min(args.epochs, (done // task.every + 1) * task.every)
        clock.synchronize(device)
        start = time.perf_counter()
        # No .item() here: it makes the host wait for the GPU.
        losses = [torch.stack([step(*batch) for batch in task.batches(epoch)]) for epoch in range(done, end)]
        clock.synchronize(device)
        us_per_step = (time.perf_counter() - start) * 1e6 / sum(map(len, losses))
        means = torch.stack(losses).double().mean(dim=1)
        if args.world > 1:  # each has its share of every batch's loss
            torch.distributed.all_reduce(means)
        history.losses += means.tolist()
        history.us_per_step += [us_per_step] * len(means)
        if task.accuracy:
            history.accuracies.append(task.accuracy(network))
        save(args, network, optimizer, history)
        yield history


def save(args: argparse.Namespace, network: nn.Module, optimizer: torch.optim.Optimizer, history: History) -> None:
    """Write the checkpoint that --save names, if it names one; of several processes only the first does."""
    if args.save and args.rank == 0:
        states = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states | {"settings": settings(args), "history": vars(history)}, buffer := io.BytesIO())
        files.write(args.save, buffer.getvalue())


def resume(args: argparse.Namespace, task: Task, network: nn.Module, optimizer: torch.optim.Optimizer) -> History:
    """Load a checkpoint. Failure if it is none, or not one of this run."""
    try:
        found = torch.load(args.resume, map_location="cpu", weights_only=True)
        theirs, history, done = found["settings"], found["history"], len(found["history"]["losses"])
        if theirs == settings(args) and done <= args.epochs:
            column = [0.0] * done
            columns = {"losses": column, "accuracies": column if task.accuracy else [], "us_per_step": column}
            momentum = [{"momentum_buffer": parameter} for parameter in network.parameters() if task.momentum]
            expect_form(history, columns)
            if min(history["us_per_step"], default=1.0) <= 0:
                raise ValueError("a step takes time")
            expect_form(found["network"], network.state_dict())
            expect_form(found["optimizer"]["state"], dict(enumerate(momentum)))
            network.load_state_dict(found["network"])
            # The groups hold the learning rate and the like, which this program decides.
            optimizer.load_state_dict(found["optimizer"] | {"param_groups": optimizer.state_dict()["param_groups"]})
            return History(**history)
    except Exception as error:  # any at all: another file can hold anything
        raise Failure(f"{args.resume} is no checkpoint of train.py, or is damaged ({type(error).__name__})") from error
    raise Failure(f"{args.resume} has {done} epochs with {theirs}; give the same settings, and --epochs {done} or more")


def expect_form(found: object, expected: object) -> None:
    """ValueError if the two differ in a key, a length, the type of a value, or the shape or dtype of a tensor."""
    if form(found) != form(expected):
        raise ValueError(f"expected {form(expected)}")


def form(value: object) -> object:
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items()}
    if isinstance(value, list):
        return [form(each) for each in value]
    return (value.shape, value.dtype) if isinstance(value, Tensor) else type(value)


def captured(step: Callable[[], Tensor], network: nn.Module) -> Callable[[], Tensor]:
    """A step without a batch as a CUDA graph: one call launches forward, backward and the optimizer."""
    before = {name: value.clone() for name, value in network.state_dict().items()}
    losses: list[Tensor] = []
    graph = clock.capture([lambda: losses.append(step())])
    network.load_state_dict(before)  # a captured step has not run, but the warm-up's have

    def replay() -> Tensor:
        graph.replay()
        return losses[-1].clone()  # out of the graph's memory, which the next replay writes again

    return replay


def settings(args: argparse.Namespace) -> dict:
    """The options that decide the losses. A run is resumed only with the same."""
    return {name: getattr(args, name) for name in ("model", "seed", "batch", "dtype")}
