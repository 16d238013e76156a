"""A training step with a transposition in it, for docs/13_profile.md: its kernels, by GPU time.

python3 examples/profile/step.py               # the tile without padding: rung 2 of docs/10_transpose.md
python3 examples/profile/step.py --rung 3      # with padding
python3 examples/profile/step.py --once        # one step without torch's profiler: for ncu and nsys
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transpose"))
import transpose
from transpose import kernels


class Transpose(torch.autograd.Function):
    """x transposed, by a kernel of examples/transpose. Its gradient is transposed by the same kernel."""

    @staticmethod
    def forward(ctx, x: Tensor, launchers: kernels.OnGpu, rung: int) -> Tensor:
        ctx.launchers, ctx.rung = launchers, rung
        return transpose.transpose(launchers, rung, x, x.new_empty(x.shape[1], x.shape[0]))

    @staticmethod
    def backward(ctx, grad: Tensor):
        return Transpose.apply(grad.contiguous(), ctx.launchers, ctx.rung), None, None


class Mixer(nn.Module):
    """Mixes the channels of each token, then the tokens of each channel."""

    def __init__(self, tokens: int, channels: int, launchers: kernels.OnGpu, rung: int):
        super().__init__()
        self.channels, self.tokens = nn.Linear(channels, channels), nn.Linear(tokens, 256)
        self.launchers, self.rung = launchers, rung

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.channels(x))
        return self.tokens(Transpose.apply(x, self.launchers, self.rung))


def show_kernels(step) -> None:
    """Print the kernels of one step that take the most GPU time, and write the timeline to trace.json."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        step()
        torch.cuda.synchronize()
    record.export_chrome_trace("trace.json")
    found = [e for e in record.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    found.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in found)
    print(f"GPU time of one step: {total:.0f} us")
    for e in found[:6]:
        us = e.self_device_time_total
        print(f"{us:6.0f} us  {us / total:4.0%}  {e.count} x  {e.key[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rung", type=int, default=2, choices=transpose.RUNGS)
    parser.add_argument("--once", action="store_true", help="one step without torch's profiler")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("step.py: this profiles kernels on a GPU, and there is none here")
    launchers = kernels.load(Path(transpose.__file__).with_name("transpose.cu"))
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        model, x = Mixer(16384, 1024, launchers, args.rung), torch.randn(16384, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(1 if args.once else 3):  # the first steps load kernels
        step()
    torch.cuda.synchronize()
    if not args.once:
        show_kernels(step)


if __name__ == "__main__":
    main()
