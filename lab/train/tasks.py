"""A real network on real images: a residual network whose every skip connection is add2, for handwritten digits.

The images are scikit-learn's: 1797 digits of 8 x 8 pixels (Alpaydin and Kaynak, "Optical Recognition of Handwritten
Digits", 1998), which come with the package, so nothing is downloaded. The network is a small one of the kind of He et
al., "Identity Mappings in Deep Residual Networks", 2016, with group normalization (Wu and He, 2018) in the place of
batch normalization: it does not look at the other images of a batch, so the loss is the same however many processes
share a batch.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from .training import Add, Task

CHANNELS, BLOCKS, GROUPS = 32, 3, 8
TRAIN = 1437  # of 1797 images; the others test


class Block(nn.Module):
    """x + f(x): the skip connection is the operator under test."""

    def __init__(self, add: Add) -> None:
        super().__init__()
        self.add = add
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, CHANNELS) for _ in "12")
        self.convolutions = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in "12")

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(functional.relu(norm(y)))
        return self.add(x, y)


class Residual(nn.Module):
    """Images (N, 1, 8, 8) of float32 to logits (N, 10)."""

    def __init__(self, add: Add) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, padding=1),
            *(Block(add) for _ in range(BLOCKS - 1)),
            nn.AvgPool2d(2),
            Block(add),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(CHANNELS * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def missing() -> str | None:
    """None if the images are there, else what to install."""
    try:
        import sklearn.datasets  # noqa: F401
    except ImportError as error:
        return f"--model residual needs scikit-learn ({error}): `python3 -m pip install scikit-learn`"
    return None


def task(device: torch.device, batch: int, seed: int, rank: int, world: int) -> Task:
    """The network and its data. batch: images a step, of all processes together; this one takes its share of them."""
    import sklearn.datasets

    batch = min(batch, TRAIN)
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device)[:, None] / 16
    labels = torch.tensor(digits.target, device=device)
    mixed = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)  # the same split always
    training, test = mixed[:TRAIN], mixed[TRAIN:]

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        # A generator for each epoch, so that a run that is resumed there sees the same batches.
        order = torch.randperm(TRAIN, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).to(device)
        for whole in training[order].split(batch)[: TRAIN // batch]:  # what fills no batch is left out this time
            mine = whole[rank::world]
            yield images[mine], labels[mine], batch

    def loss(network: nn.Module, images: Tensor, labels: Tensor, whole: int) -> Tensor:
        return functional.cross_entropy(network(images), labels, reduction="sum") / whole

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            return (network(images[test]).argmax(dim=1) == labels[test]).float().mean().item()

    return Task("residual", Residual, batches, loss, accuracy, lr=0.01, momentum=0.9, every=1)
