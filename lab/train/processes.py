"""Several processes that train one network together: one for each GPU, or some on CPUs.
`torchrun --nproc-per-node N train.py ...` starts them, and its environment tells each one its number."""

import argparse
import os
import sys
from typing import NoReturn

import torch
import torch.distributed as dist

from ..build import Failure


def connect(args: argparse.Namespace, on_gpus: bool) -> None:
    """From here on torch.distributed works: NCCL among GPUs, gloo among CPUs. Failure if there are too few GPUs."""
    if on_gpus:
        number, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= gpus:
            cure = f"start at most {gpus} (`--nproc-per-node {gpus}`), or take CPUs (`--device cpu`)"
            raise Failure(f"process {number + 1} of this machine has no GPU: it has {gpus}, one for each; {cure}")
        args.device = torch.device("cuda", number)
        torch.cuda.set_device(args.device)
    # After a restart by `torchrun --max-restarts` the store still has the addresses of the processes that ended,
    # and gloo would call them (torch 2.13 to 2.15): so each attempt has a prefix of its own.
    prefix = f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}"
    store = dist.PrefixStore(prefix, next(dist.rendezvous("env://"))[0])
    dist.init_process_group("nccl" if on_gpus else "gloo", store=store, rank=args.rank, world_size=args.world)


def leave(status: int) -> NoReturn:
    """End this process. Not as Python usually ends: a thread of gloo's may still hold a tensor then, and aborts the
    process (seen with torch 2.13, https://github.com/pytorch/pytorch/issues/190489)."""
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
