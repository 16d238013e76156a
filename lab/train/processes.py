"""Several processes that train one network together: one for each GPU, or some on CPUs.
`torchrun --nproc-per-node N train.py ...` starts them, and tells each by its environment which one it is."""

import argparse
import contextlib
import datetime
import os
import signal
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from .. import cli
from ..build import Failure


def rank_and_world(on_gpus: bool) -> tuple[int, int]:
    """This process's number, and how many there are. Failure if torchrun has not started it, or GPUs are too few."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        found = " and ".join(name for name in ("RANK", "WORLD_SIZE") if name in os.environ)
        cure = "start several by `torchrun --nproc-per-node N train.py ...`; for a single one unset RANK and WORLD_SIZE"
        raise Failure(f"{found} in the environment, but torchrun has not started this process: {cure}")
    here, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if on_gpus and gpus < here:
        raise Failure(f"{here} processes, but {gpus} GPU(s): one process a GPU. Start {gpus}, or give --device cpu")
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def connected(args: argparse.Namespace) -> Iterator[None]:
    """Inside, torch.distributed works: NCCL among GPUs, gloo among CPUs. Failure if another process has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # so torchrun ends a process that waits in a collective
    if on_gpus := cli.has_gpu(args):
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
        if "device" in args:
            args.device = own
    try:
        # After a restart by `torchrun --max-restarts` the store still has the addresses of the processes that ended,
        # and gloo would call them (torch 2.13 to 2.15): so each attempt has a prefix of its own.
        store, rank, world = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        options = {"store": store, "rank": rank, "world_size": world, "timeout": datetime.timedelta(minutes=5)}
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", **options)
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        found = f"process {args.rank} of {args.world}: another one has ended or does not answer"
        raise Failure(f"{found} ({str(error).splitlines()[0]})") from error
    dist.destroy_process_group()


def add_up(values: torch.Tensor) -> None:
    """Replace each process's values by the sum over all processes."""
    dist.all_reduce(values)
    # If gloo's own thread releases the tensor last, while Python ends, the process is aborted (seen with torch 2.13,
    # https://github.com/pytorch/pytorch/issues/190489).
    while values.device.type == "cpu" and values._use_count() > 1:
        time.sleep(0.0001)
