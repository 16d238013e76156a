"""Train with add2 as a part of the model: a toy at first, then a residual network on images.

    python3 train.py --compiler jit
    python3 train.py --compiler torch               # the same with torch's own add: the same losses, bit for bit
    python3 train.py --model residual --check       # both at once, compared
    torchrun --nproc-per-node 2 train.py --model residual

The toy has two vectors a and b of 1024 numbers, and loss = add2(a^2, b^2).sum(), which training draws to zero.
"""

import sys
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from lab import arguments, build, checkpoint, digits, processes, report, training


class Toy(torch.nn.Module):
    """Two vectors of 1024 random numbers, which training draws to zero. `add` is the operator under test."""

    def __init__(self, add: training.Add) -> None:
        super().__init__()
        self.add = add
        self.a = torch.nn.Parameter(torch.randn(1024))
        self.b = torch.nn.Parameter(torch.randn(1024))

    def forward(self) -> Tensor:
        return self.add(self.a**2, self.b**2).sum()


TOY = training.Task(
    "toy",
    Toy,
    batches=lambda epoch: [()],  # one step an epoch, and no data
    loss=lambda network: network() / processes.WORLD,
    accuracy=None,
    lr=0.01,
    momentum=0.0,
    every=25,
)


def train(task: training.Task, add: training.Add, device: torch.device, args) -> Iterator[training.History]:
    """Train until args.epochs; yield the history whenever the last epoch's loss is to be told."""
    torch.manual_seed(args.seed)  # on the CPU, before the network moves: the same numbers for every device
    network = task.network(add).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=task.lr, momentum=task.momentum)
    history = checkpoint.restore(args.resumed, network, optimizer) if args.resumed else training.History()
    called = training.wrapped(network, args.compile)

    def step(*batch) -> Tensor:
        optimizer.zero_grad()
        with training.autocast(args.dtype, device):
            loss = task.loss(called, *batch)
        (loss * processes.WORLD).backward()  # DistributedDataParallel takes the mean over the processes, we the sum
        optimizer.step()
        return loss.detach().clone() if args.compile else loss.detach()  # a replayed graph writes the next loss there

    if args.cuda_graph:
        step = training.captured(step, network)
    done = len(history.losses)
    for epochs in training.portions(done, args.epochs, 1 if args.save else task.every):
        with training.timed(history, epochs, device) as losses:
            for epoch in epochs:
                losses.append([step(*batch) for batch in task.batches(epoch)])
        if task.accuracy:
            history.accuracies.append(task.accuracy(network))
        if args.save and processes.RANK == 0:
            checkpoint.save(args.save, settings(args), network, optimizer, history)
        yield history
    if done >= args.epochs:
        report.note(f"{args.resume} has all of its {done} epochs; --epochs N goes on")
        yield history


def main() -> int:
    with processes.one_voice():
        args = parse()
        with processes.together("cuda" if arguments.has_gpu(args) else "cpu"):
            return run(args)


def run(args) -> int:
    # 1. Build, load, register.
    with processes.first_of_the_machine():
        adds, builds, device = load(args)
    task = TOY
    if args.model == "residual":
        task = digits.task(device, args.batch, args.seed, processes.RANK, processes.WORLD)
    environment = report.environment(device)
    print(report.describe(environment), *map(report.describe_build, builds), sep="\n")

    # 2. Train. With --check, portion by portion in turn with torch's own add, so that both see the same machine.
    found: tuple[training.History, ...] = ()
    complete = True
    try:
        for found in zip(*(train(task, add, device, args) for add in adds.values()), strict=True):
            training.tell(task, found[0], args.epochs)
    except KeyboardInterrupt:
        complete = False

    # 3. What it comes to.
    histories = dict(zip(adds, found, strict=True)) if found else {}
    training.conclude(task, histories)
    content = {"environment": environment, "settings": settings(args), "complete": complete}
    training.write_files(args, content, histories)
    if not complete:
        return report.fail("interrupted; what was done until then is above, and in the files", status=130)
    if args.check and not training.same(histories, exact=not args.compile):
        return report.fail("the losses differ from those with torch's own add")
    return 0


def load(args) -> tuple[dict[str, training.Add], list[build.Build], torch.device]:
    """The functions to train with, by name; the builds that they come from; the device to train on."""
    adds: dict[str, training.Add] = {}
    builds = []
    if args.compiler != "torch":
        builds = [build.load(args.compiler, rebuild=args.rebuild, library=args.library)]
        import add2  # after load(): it finds the operator registered

        adds[args.compiler] = add2.add2
    if args.compiler == "torch" or args.check:
        adds["torch"] = torch.add
    device = arguments.choose_device(args, all(build.has_cuda_code(found.library) for found in builds))
    return adds, builds, processes.device(device)


def parse(argv=None):
    parser = arguments.parser(__doc__.splitlines()[0], [*build.COMPILERS, "torch"])
    parser.add_argument("--model", choices=["toy", "residual"], default="toy", help="residual: on handwritten digits")
    parser.add_argument("--epochs", type=arguments.count, default=SUPPRESS, help="(default: toy 500, residual 20)")
    parser.add_argument("--batch", type=arguments.count, default=64, help="images a step, of all processes together")
    parser.add_argument("--seed", type=int, default=0, help="of the first values, and of the order of the images")
    parser.add_argument("--check", action="store_true", help="train with torch's own add, too, and compare the losses")
    ways = parser.add_argument_group("ways to run it")
    ways.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: by autocast")
    ways.add_argument("--compile", action="store_true", help="torch.compile the network")
    ways.add_argument("--cuda-graph", action="store_true", help="replay each step of the toy as one CUDA graph")
    ways.add_argument("--deterministic", action="store_true", help="the same bits in each run on a GPU, too")
    to = parser.add_argument_group("where it goes")
    to.add_argument("--save", type=arguments.writable, metavar="FILE", help="write a checkpoint after each epoch")
    to.add_argument("--resume", type=Path, metavar="FILE", help="go on from one; from nothing if --save will write it")
    to.add_argument("--plot", type=arguments.picture, metavar="FILE.png", help="draw losses and accuracy")
    to.add_argument("--json", type=arguments.writable, metavar="FILE", help="write all figures to FILE")
    args = parser.parse_args(argv)
    args.epochs = getattr(args, "epochs", 500 if args.model == "toy" else 20)
    if args.model == "residual" and (reason := digits.missing()):
        parser.error(reason)
    if args.cuda_graph and (args.model != "toy" or processes.WORLD > 1 or not arguments.has_gpu(args)):
        parser.error("--cuda-graph is for --model toy, one process, and a GPU")
    if args.cuda_graph and args.compile:
        parser.error("--cuda-graph captures the eager step; not with --compile")
    if args.check and (args.compiler == "torch" or args.save or args.resume):
        parser.error("--check trains twice: with a build of add2, and without --save and --resume")
    if args.batch < processes.WORLD:
        parser.error(f"--batch {args.batch} leaves some of {processes.WORLD} processes without an image")
    if reason := processes.complaint("cuda" if arguments.has_gpu(args) else "cpu"):
        parser.error(reason)
    args.resumed = None
    if args.resume and (args.resume.exists() or args.resume != args.save):
        try:
            args.resumed = checkpoint.load(args.resume, settings(args))
        except ValueError as error:
            parser.error(str(error))
    if args.deterministic or args.check:
        training.make_deterministic()
    return args


def settings(args) -> dict:
    """What decides the losses. A run is resumed only with the same."""
    return {name: getattr(args, name) for name in ("model", "seed", "batch", "dtype")}


if __name__ == "__main__":
    sys.exit(report.run(main))
