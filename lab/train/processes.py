"""Several processes that train one network together: one for each GPU, or some on CPUs.
`torchrun --nproc-per-node N train.py ...` starts them, and its environment tells each one its number."""

import argparse
import contextlib
import datetime
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from ..build import Failure


def rank_and_world(on_gpus: bool) -> tuple[int, int]:
    """This process's number, and the number of processes. Failure if there are too few GPUs."""
    here, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if on_gpus and gpus < here:
        raise Failure(f"{here} processes, but {gpus} GPU(s): start one process per GPU, or give --device cpu")
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def connected(args: argparse.Namespace, on_gpus: bool) -> Iterator[None]:
    """Inside, torch.distributed works: NCCL among GPUs, gloo among CPUs. Failure if another process has ended."""
    if on_gpus:
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
        args.device = args.device and own  # instead of the same one for all
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
