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
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which `python3 -P` leaves out

from lab import build, cli, files
from lab.train import loop, tasks


def main() -> int:
    args = parse()
    if args.world == 1:
        return run(args)
    from lab.train import processes

    if args.rank:  # only the first process prints
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    processes.connect(args, cli.has_gpu(args))
    processes.leave(run(args))


def run(args: argparse.Namespace) -> int:
    # 1. Build, load, register.
    adds: dict[str, Callable[..., torch.Tensor]] = {}
    builds = []
    if args.compiler != "torch":
        builds = [build.load(args.compiler, rebuild=args.rebuild, library=args.library)]
        import add2  # after load(): it finds the operator registered

        adds[args.compiler] = add2.add2
    if args.compiler == "torch" or args.check:
        adds["torch"] = torch.add
    device = cli.choose_device(args, builds[0].library if builds else None)
    environment = cli.environment(device)
    print(cli.describe(environment, builds))

    # 2. Train. With --check, portion by portion in turn with torch's own add, so that both see the same machine.
    task = tasks.toy(args.world) if args.model == "toy" else tasks.residual(device, args)
    found: tuple[loop.History, ...] = ()
    is_complete = True
    try:
        for found in zip(*(loop.train(task, add, device, args) for add in adds.values()), strict=True):
            epoch = (len(found[0].losses) - 1) // task.every * task.every
            print(f"epoch {epoch:3d}: {summary(found[0], epoch)}")
    except KeyboardInterrupt:
        is_complete = False
    histories = dict(zip(adds, found, strict=False))

    # 3. Conclude.
    for name, history in histories.items():
        us = statistics.median(history.us_per_step)
        mark = "~" if history.is_noisy() else ""
        text = f"{summary(history)} after {len(history.losses)} epochs"
        print(f"{args.model} by {name}: {text}; {us:.1f}{mark} us per step, {1e6 / us:.0f}{mark} steps/s")
    is_right = compare(args, *histories.values()) if len(histories) == 2 else True
    if any(history.is_noisy() for history in histories.values()):
        print("~: noisy, the times of fewer than ten portions, or with a 5th to 95th percentile spread above 25%")
    if args.json and args.rank == 0 and histories:  # without any, a file of an earlier run is worth more
        ways = {name: getattr(args, name) for name in ("compile", "cuda_graph", "check")}
        content: dict[str, Any] = {"environment": environment, "settings": loop.settings(args)}
        content |= {"complete": is_complete, "ways": ways, "processes": args.world, "training": []}
        for name, history in histories.items():
            row = {"add": name, "median_us_per_step": statistics.median(history.us_per_step), **vars(history)}
            content["training"].append(row)
        files.write(args.json, files.to_json(content))
    if not is_complete:
        return cli.fail("interrupted; what was done until then is above, and in the files", 130)
    return 0 if is_right else cli.fail("the losses differ from those with torch's own add")


def summary(history: loop.History, epoch: int = -1) -> str:
    accuracy = f", accuracy = {history.accuracies[-1]:.1%}" if history.accuracies else ""
    return f"loss = {history.losses[epoch]:.6g}{accuracy}"


def compare(args: argparse.Namespace, ours: loop.History, torchs: loop.History) -> bool:
    """Print how far the losses are apart. Returns whether they are as near as they must be."""
    ratio = statistics.median(ours.us_per_step) / statistics.median(torchs.us_per_step)
    first, most = difference(ours, torchs, 1), difference(ours, torchs)
    apart = "the same, bit for bit" if most == 0 else f"apart by {first:.1e} in the first epoch, {most:.1e} at most"
    mark = "~" if ours.is_noisy() or torchs.is_noisy() else ""
    print(f"losses with add2 and with torch's own add: {apart}; time per step: {ratio:.3f}{mark} of torch's")
    # torch.compile fuses torch's add with its neighbours, and so rounds elsewhere. Training makes the difference grow.
    return first <= 0.01 if args.compile else most == 0


def difference(ours: loop.History, torchs: loop.History, epochs: int | None = None) -> float:
    """The largest relative difference of the losses in the first epochs: 0 if they are the same, NaN if one is that."""
    pairs = zip(ours.losses[:epochs], torchs.losses[:epochs], strict=False)  # interrupted, ours may have more
    return torch.tensor([abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs]).double().max().item()


def make_deterministic() -> None:
    """The same bits from run to run on a GPU, too. Call it before CUDA starts: cuBLAS reads its variable then."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # A help to find mistakes, which takes time. (mypy does not see the module's attribute.)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = cli.parser("Train with add2 as a part of the model.", [*build.COMPILERS, "torch"])
    parser.add_argument("--model", choices=["toy", "residual"], default="toy", help="(default: toy)")
    parser.add_argument("--epochs", type=int, help="(default: toy 500, residual 20)")
    parser.add_argument("--batch", type=int, default=64, help="images per step, over all processes (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="for first values and the images' order (default: 0)")
    parser.add_argument("--check", action="store_true", help="train with torch's own add, too, and compare the losses")
    ways = parser.add_argument_group("ways to run it")
    ways.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: by autocast")
    ways.add_argument("--compile", action="store_true", help="torch.compile the network")
    ways.add_argument("--cuda-graph", action="store_true", help="replay each step of the toy as one CUDA graph")
    to = parser.add_argument_group("checkpoints")
    to.add_argument("--save", type=files.target, metavar="FILE", help="write a checkpoint after each epoch (toy: 25)")
    to.add_argument("--resume", type=Path, metavar="FILE", help="go on from one; from nothing if --save will write it")
    args = cli.parse(parser, argv)
    if args.epochs is None:
        args.epochs = 500 if args.model == "toy" else 20
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")  # torchrun sets both
    is_one = (rank, world) == ("0", "1")
    is_torchrun = "TORCHELASTIC_RESTART_COUNT" in os.environ and rank.isdecimal() and world.isdecimal()
    if not is_one and not (is_torchrun and int(rank) < int(world)):
        parser.error(f"found RANK={rank}, WORLD_SIZE={world}, but no torchrun: unset both, or start it with torchrun")
    args.rank, args.world = int(rank), int(world)
    if args.epochs < 1 or args.batch < args.world or not 0 <= args.seed < 2**63:
        parser.error("--epochs starts at 1, --batch at the number of processes; --seed is from 0 to 2^63 - 1")
    if args.model == "residual" and not importlib.util.find_spec("sklearn"):
        parser.error("--model residual needs scikit-learn: `python3 -m pip install scikit-learn`")
    if args.cuda_graph and (args.model != "toy" or args.world > 1 or args.compile or not cli.has_gpu(args)):
        parser.error("--cuda-graph is for --model toy without --compile, one process, and a GPU")
    if args.check and (args.compiler == "torch" or args.save or args.resume):
        parser.error("--check trains twice: with a build of add2, and without --save and --resume")
    if args.resume and Path(os.path.realpath(args.resume)) != args.save and not args.resume.is_file():
        parser.error(f"--resume: cannot read {args.resume}: there is no such file")
    cli.expect_different_files(parser, args, "library", "json", "save")
    cli.expect_different_files(parser, args, "library", "json", "resume")  # which may be --save's
    if args.check:
        make_deterministic()
    return args


if __name__ == "__main__":
    sys.exit(cli.run(main))
