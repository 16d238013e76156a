"""Train a toy model whose only operation is add2: parameters a and b, loss = add2(a^2, b^2).sum().

python3 train.py --compiler jit
python3 train.py --compiler torch      # the same with torch's own add: the same losses, bit for bit
"""

import sys
from collections.abc import Callable, Iterator

import torch

from lab import arguments, compilers, report


class Model(torch.nn.Module):
    """Two vectors of 1024 random numbers, which training draws to zero. `add` is the operator under test."""

    def __init__(self, add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.add = add
        self.a = torch.nn.Parameter(torch.randn(1024))
        self.b = torch.nn.Parameter(torch.randn(1024))

    def forward(self) -> torch.Tensor:
        return self.add(self.a**2, self.b**2).sum()


def train(add: Callable, device: torch.device, epochs: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield the loss of each epoch. Not .item(): that would make the host wait for the GPU in every epoch."""
    torch.manual_seed(seed)  # on the CPU, before the model moves: the same numbers for every device
    model = Model(add).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def parse():
    parser = arguments.parser(__doc__.splitlines()[0], [*compilers.COMPILERS, "torch"])
    parser.add_argument("--epochs", type=arguments.count, default=500, help="gradient steps")
    parser.add_argument("--seed", type=int, default=0, help="of the parameters' first values")
    return parser.parse_args()


def load(args) -> tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], torch.device]:
    """The add to train with, and the device to train on."""
    if args.compiler == "torch":
        return torch.add, arguments.choose_device(args, has_cuda_code=True)
    build = compilers.load(args.compiler, rebuild=args.rebuild, library=args.library)
    device = arguments.choose_device(args, compilers.has_cuda_code(build.library))
    print(report.describe_build(build))
    import add2  # after load(): it finds the operator registered

    return add2.add2, device


def main() -> int:
    args = parse()
    add, device = load(args)
    for epoch, loss in enumerate(train(add, device, args.epochs, args.seed)):
        if epoch % 25 == 0:
            print(f"epoch {epoch:3d}: loss = {loss.item():.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(report.run(main))
