"""Train with add2 as a part of the model: first a toy, then a residual network on images.

    python3 train.py --compiler jit
    python3 train.py --compiler torch               # the same with torch's own add: the same losses, bit for bit
    python3 train.py --model residual --check       # with both, compared
    torchrun --nproc-per-node 2 train.py --model residual

The toy has two vectors a and b of 1024 numbers, and loss = add2(a^2, b^2).sum(), which training draws to zero.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    from lab import cli

    cli.start()  # before torch is imported, which takes seconds

import torch

from lab import build, cli
from lab.train import loop, tasks


def main() -> int:
    args = parse()
    if args.world == 1:
        return run(args)
    from lab.train import processes

    if args.rank:  # only the first process prints
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    with processes.connected(args):
        return run(args)


def run(args: argparse.Namespace) -> int:
    # 1. Build, load, register.
    adds, builds, device = load(args)
    task = tasks.toy(args.world) if args.model == "toy" else tasks.residual(device, args)
    environment = cli.environment(device)
    print(cli.describe(environment, builds))

    # 2. Train. With --check, portion by portion in turn with torch's own add, so that both see the same machine.
    found: tuple[loop.History, ...] = ()
    complete = True
    try:
        for found in zip(*(loop.train(task, add, device, args) for add in adds.values()), strict=True):
            tell(task, found[0])
    except KeyboardInterrupt:
        complete = False

    # 3. Conclude.
    histories = dict(zip(adds, found, strict=True)) if found else {}
    conclude(args.model, histories)
    status = 0
    if args.rank == 0 and histories:  # without any, a file of an earlier run is worth more
        content = {"environment": environment, "settings": loop.settings(args), "complete": complete}
        status = write_files(args, content, histories)
    if not complete:
        return cli.fail("interrupted; what was done until then is above, and in the files", 130)
    # torch.compile fuses torch's add with its neighbours, and so rounds elsewhere. Training makes the difference grow.
    epochs, limit = (1, 0.01) if args.compile else (None, 0)
    if args.check and not loop.difference(*histories.values(), epochs) <= limit:
        return cli.fail("the losses differ from those with torch's own add")
    return status


def load(args: argparse.Namespace) -> tuple[dict[str, tasks.Add], list[build.Build], torch.device]:
    """The functions to train with, by name; the builds that they come from; the device to train on."""
    adds: dict[str, tasks.Add] = {}
    builds = []
    if args.compiler != "torch":
        builds = [build.load(args.compiler, rebuild=args.rebuild, library=args.library)]
    device = cli.choose_device(args, builds[0].library if builds else None)
    if builds:
        import add2  # after load(): it finds the operator registered

        adds[args.compiler] = add2.add2
    if args.compiler == "torch" or args.check:
        adds["torch"] = torch.add
    return adds, builds, device


def tell(task: tasks.Task, history: loop.History) -> None:
    """Print the last epoch's line, if it has one."""
    epoch, loss = len(history.losses) - 1, history.losses[-1]
    if epoch % task.every == 0:
        accuracy = f", accuracy = {history.accuracies[-1]:.1%}" if history.accuracies else ""
        print(f"epoch {epoch:3d}: loss = {loss:.3f}{accuracy}")


def conclude(model: str, histories: dict[str, loop.History]) -> None:
    """Print a line for each add, and compare the two."""
    for name, history in histories.items():
        line = f"{model} by {name}: loss = {history.losses[-1]:.6g} after {len(history.losses)} epochs"
        line += f", accuracy = {history.accuracies[-1]:.1%}" if history.accuracies else ""
        each = history.steady_us_per_step()
        print(f"{line}; {each:.1f} us a step, {1e6 / each:.0f} steps/s")
    if len(histories) == 2:
        ours, torchs = histories.values()
        ratio = ours.steady_us_per_step() / torchs.steady_us_per_step()
        first, most = loop.difference(ours, torchs, 1), loop.difference(ours, torchs)
        word = f"apart by {first:.1e} in the first epoch, {most:.1e} at most" if most else "the same, bit for bit"
        print(f"losses with add2 and with torch's own add: {word}; time a step: {ratio:.3f} of torch's")


def write_files(args: argparse.Namespace, content: dict, histories: dict[str, loop.History]) -> int:
    """--json and --plot. Returns the exit status."""
    content |= {"ways": {name: getattr(args, name) for name in ("compile", "cuda_graph", "check")}}
    content |= {"processes": args.world, "training": []}
    for name, history in histories.items():
        content["training"].append({"add": name, "median_us_per_step": history.steady_us_per_step(), **vars(history)})
    return cli.save(args, content, "lab.bench.plots:training")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = cli.parser("Train with add2 as a part of the model.", [*build.COMPILERS, "torch"])
    parser.add_argument("--model", choices=["toy", "residual"], default="toy", help="(default: toy)")
    parser.add_argument("--epochs", type=int, default=argparse.SUPPRESS, help="(default: toy 500, residual 20)")
    parser.add_argument("--batch", type=int, default=64, help="images a step, over all processes (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="for first values and the images' order (default: 0)")
    parser.add_argument("--check", action="store_true", help="train with torch's own add, too, and compare the losses")
    ways = parser.add_argument_group("ways to run it")
    ways.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: by autocast")
    ways.add_argument("--compile", action="store_true", help="torch.compile the network")
    ways.add_argument("--cuda-graph", action="store_true", help="replay each step of the toy as one CUDA graph")
    to = parser.add_argument_group("checkpoints")
    to.add_argument("--save", type=Path, metavar="FILE", help="write a checkpoint after each epoch")
    to.add_argument("--resume", type=Path, metavar="FILE", help="go on from one; from nothing if --save will write it")
    args = cli.parse(parser, argv)
    args.epochs = getattr(args, "epochs", 500 if args.model == "toy" else 20)
    if min(args.epochs, args.batch) < 1 or not 0 <= args.seed < 2**63:
        parser.error("--epochs and --batch start at 1; --seed is from 0 to 2^63 - 1")
    if args.model == "residual" and not importlib.util.find_spec("sklearn"):
        parser.error("--model residual needs scikit-learn: `python3 -m pip install scikit-learn`")
    args.rank, args.world = 0, 1
    if {"RANK", "WORLD_SIZE"} & os.environ.keys():  # torchrun sets both
        from lab.train import processes

        args.rank, args.world = processes.rank_and_world(cli.has_gpu(args))
    if args.cuda_graph and (args.model != "toy" or args.world > 1 or not cli.has_gpu(args)):
        parser.error("--cuda-graph is for --model toy, one process, and a GPU")
    if args.cuda_graph and args.compile:
        parser.error("--cuda-graph captures the eager step; it cannot be combined with --compile")
    if args.check and (args.compiler == "torch" or args.save or args.resume):
        parser.error("--check trains twice: with a build of add2, and without --save and --resume")
    if args.batch < args.world:
        parser.error(f"--batch {args.batch} leaves some of {args.world} processes without an image")
    if args.save and args.save.exists() and not args.resume and args.rank == 0:
        cli.note(f"{args.save} will be replaced; `--resume {args.save}` goes on from it")
    args.resumed = None
    if args.resume and (args.resume.exists() or args.resume.resolve() != (args.save and args.save.resolve())):
        from lab.train import checkpoint

        try:
            args.resumed = checkpoint.load(args.resume, loop.settings(args))
        except ValueError as error:
            parser.error(str(error))
    if args.check:
        loop.make_deterministic()
    return args


if __name__ == "__main__":
    sys.exit(cli.run(main))
