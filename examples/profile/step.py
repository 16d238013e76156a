"""A training step with a transposition in it, for docs/profile.md: its kernels by time.

python3 examples/profile/step.py                 # the tile without padding
python3 examples/profile/step.py --rung 3        # with padding
python3 examples/profile/step.py --once          # one step, no table: for ncu and nsys
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transpose"))
import transpose


class Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, library, rung):
        ctx.rest = library, rung
        return transpose.transpose(library, rung, x, x.new_empty(x.shape[1], x.shape[0]))

    @staticmethod
    def backward(ctx, grad):
        return Transpose.apply(grad.contiguous(), *ctx.rest), None, None


class Mixer(nn.Module):
    """Mixes the channels of each token, then the tokens of each channel."""

    def __init__(self, tokens: int, channels: int, library, rung: int):
        super().__init__()
        self.channels, self.tokens = nn.Linear(channels, channels), nn.Linear(tokens, tokens)
        self.library, self.rung = library, rung

    def forward(self, x):
        x = torch.relu(self.channels(x))
        x = Transpose.apply(x, self.library, self.rung)
        return self.tokens(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rung", type=int, default=2, choices=transpose.RUNGS)
    parser.add_argument("--once", action="store_true", help="one step, no table: for ncu and nsys")
    args = parser.parse_args()
    library = transpose.load(Path(transpose.__file__).with_name("transpose.cu"))
    if not library:
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        model, x = Mixer(4096, 4096, library, args.rung), torch.randn(4096, 4096)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    if not args.once:
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    if args.once:
        step()
        torch.cuda.synchronize()
        return
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        step()
        torch.cuda.synchronize()
    kernels = [e for e in record.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    total = sum(e.self_device_time_total for e in kernels)
    print(f"GPU time of one step: {total:.0f} us")
    for e in sorted(kernels, key=lambda e: -e.self_device_time_total)[:8]:
        us = e.self_device_time_total
        print(f"{us:8.0f} us {us / total:6.1%} {e.count:3}x  {e.key[:80]}")
    record.export_chrome_trace("trace.json")


if __name__ == "__main__":
    main()
