"""The two tasks of train.py: a toy, and a residual network (He et al., "Identity Mappings in Deep Residual Networks",
2016) on scikit-learn's 1797 handwritten digits of 8 x 8 pixels. Its group normalization does not look at a batch's
other images, so the loss does not depend on the number of processes that share a batch."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Add = Callable[[Tensor, Tensor], Tensor]

CHANNELS, BLOCKS, GROUPS = 32, 3, 8
TRAIN = 1437  # of 1797 images; the others test


@dataclass
class Task:
    """A network, its data and its loss."""

    network: Callable[[Add], nn.Module]
    batches: Callable[[int], Iterable[tuple]]  # for an epoch: the arguments of loss(), this process's share of each
    loss: Callable[..., Tensor]  # for a network and a batch; its sum over the processes is the batch's loss
    accuracy: Callable[[nn.Module], float] | None = None
    momentum: float = 0.0
    every: int = 1  # print the loss once in so many epochs


class Toy(nn.Module):
    """Two vectors of 1024 random numbers, which training draws to zero."""

    def __init__(self, add: Add) -> None:
        super().__init__()
        self.add = add
        self.a, self.b = (nn.Parameter(torch.randn(1024)) for _ in "ab")

    def forward(self) -> Tensor:
        return self.add(self.a**2, self.b**2).sum()


def toy(world: int = 1) -> Task:
    """One step an epoch, and no data."""
    return Task(Toy, batches=lambda epoch: [()], loss=lambda network: network() / world, every=25)


class Block(nn.Module):
    """x + f(x): the skip connection is the operator under test."""

    def __init__(self, add: Add) -> None:
        super().__init__()
        self.add = add
        self.f = nn.Sequential()
        for _ in range(2):
            convolution = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
            self.f.extend([nn.GroupNorm(GROUPS, CHANNELS), nn.ReLU(), convolution])

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, self.f(x))


def residual_network(add: Add) -> nn.Sequential:
    """From images (N, 1, 8, 8) of float32 to logits (N, 10)."""
    layers = [nn.Conv2d(1, CHANNELS, 3, padding=1), *(Block(add) for _ in range(BLOCKS - 1)), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, Block(add), nn.ReLU(), nn.Flatten(), nn.Linear(CHANNELS * 4 * 4, 10))


def residual(device: torch.device, args: argparse.Namespace) -> Task:
    """args.batch: images a step, over all processes; this one takes its share of them."""
    import sklearn.datasets

    batch = min(args.batch, TRAIN)
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device)[:, None] / 16
    labels = torch.tensor(digits.target, device=device)
    mixed = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)  # always the same split
    training, test = mixed[:TRAIN], mixed[TRAIN:]

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        # A generator for each epoch, so that a resumed run sees the same batches.
        generator = torch.Generator().manual_seed((args.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(TRAIN, generator=generator).to(device)
        for whole in training[order].split(batch)[: TRAIN // batch]:  # images that fill no batch are left out this time
            mine = whole[args.rank :: args.world]
            yield images[mine], labels[mine]

    def loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(network(images), labels, reduction="sum") / batch

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            return (network(images[test]).argmax(dim=1) == labels[test]).float().mean().item()

    return Task(residual_network, batches, loss, accuracy, momentum=0.9)
