"""A small pre-norm network, trained with add_rms_norm and with torch's own operators: the same loss, and the time.

python3 examples/add_rms_norm/model.py
"""

import statistics
import time

import torch
import torch.nn.functional as F
from add_rms_norm import add_rms_norm, build, has_toolkit, reference
from torch import Tensor, nn


class Block(nn.Module):
    """One layer of a residual network. It adds what the layer before computed to the residual stream, normalizes the
    sum, and computes something new from it: the addition and the norm are one operator."""

    def __init__(self, width: int, norm) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, branch: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        y, stream = self.norm(branch, stream, self.weight)
        return self.down(F.gelu(self.up(y))), stream


class Network(nn.Module):
    def __init__(self, width: int, depth: int, norm) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, norm) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        branch, stream = torch.zeros_like(x), x
        for block in self.blocks:
            branch, stream = block(branch, stream)
        return self.head(stream + branch)


def train(norm, device: str, dtype: torch.dtype, width: int, rows: int, steps: int) -> tuple[list[float], float]:
    """The losses, and the median time of a step in milliseconds. The same start and the same data for every norm."""
    torch.manual_seed(0)
    network = Network(width, 4, norm).to(device, dtype)
    x = torch.randn(rows, width).to(device, dtype)
    labels = (x[:, :10].float() + x[:, 10:20].float() * x[:, 20:30].float()).argmax(1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses, times = [], []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x).float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the GPU
        times.append(time.perf_counter() - start)
    return losses, 1e3 * statistics.median(times[3:])  # the first steps also load kernels and fill caches


def main() -> None:
    build()
    runs = [("cpu", torch.float32, 128, 512, 40)]
    if torch.cuda.is_available() and has_toolkit():
        runs += [("cuda", torch.float32, 1024, 4096, 40), ("cuda", torch.bfloat16, 4096, 8192, 40)]
    for device, dtype, width, rows, steps in runs:
        print(f"{device}, {dtype}: 4 blocks of width {width}, {rows} rows")
        last = []
        for name, norm in (("torch", reference), ("add_rms_norm", add_rms_norm)):
            losses, ms = train(norm, device, dtype, width, rows, steps)
            last.append(losses[-1])
            print(f"  {name:<14} loss {losses[0]:.4f} -> {losses[-1]:.4f}, {ms:8.2f} ms a step")
        difference = abs(last[1] / last[0] - 1)
        assert difference < (1e-3 if dtype == torch.float32 else 0.05), f"the losses differ by {difference:.1%}"


if __name__ == "__main__":
    main()
