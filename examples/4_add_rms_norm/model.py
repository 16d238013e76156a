"""A small pre-norm network, trained with add_rms_norm and with torch's own operators: the same loss, and the time.

python3 examples/4_add_rms_norm/model.py
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from add_rms_norm import add_rms_norm, build, has_toolkit, reference
from results import digits, environment, write_json
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


class Training:
    """A network and its data: the same start and the same data for every norm."""

    def __init__(self, norm, device: str, dtype: torch.dtype, width: int, rows: int) -> None:
        torch.manual_seed(0)
        self.network = Network(width, 4, norm).to(device, dtype)
        self.x = torch.randn(rows, width).to(device, dtype)
        self.labels = (self.x[:, :10].float() + self.x[:, 10:20].float() * self.x[:, 20:30].float()).argmax(1)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=3e-4)
        self.losses: list[float] = []
        self.times: list[float] = []

    def step(self) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self.x).float(), self.labels)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())  # waits for the GPU
        self.times.append(time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the losses and times")
    args = parser.parse_args()
    build()
    results = []
    runs = [("cpu", torch.float32, 128, 512)]
    if torch.cuda.is_available() and has_toolkit():
        runs += [("cuda", torch.float32, 1024, 4096), ("cuda", torch.bfloat16, 4096, 8192)]
    for run in runs:
        trainings = {
            name: Training(norm, *run) for name, norm in (("torch", reference), ("add_rms_norm", add_rms_norm))
        }
        for _ in range(40):  # in turn, so that both see the same machine
            for training in trainings.values():
                training.step()
        device, dtype, width, rows = run
        print(f"{device}, {dtype}: 4 blocks of width {width}, {rows} rows")
        for name, training in trainings.items():
            first, *_, last = training.losses
            ms = 1e3 * statistics.median(training.times[3:])  # the first steps also load kernels and fill caches
            row = {"device": device, "dtype": str(dtype).removeprefix("torch."), "width": width, "rows": rows}
            results.append(row | {"norm": name, "first": digits(first), "last": digits(last), "ms": digits(ms)})
            print(f"  {name:<14} loss {first:.4f} -> {last:.4f}, {ms:8.2f} ms a step")
        theirs, ours = (training.losses[-1] for training in trainings.values())
        within = 1e-3 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(ours, theirs, rtol=within, atol=within)
    if args.json:
        write_json(args.json, {"environment": environment(), "results": results})


if __name__ == "__main__":
    main()
