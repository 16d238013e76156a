"""Several processes that train one network together: one for each GPU, or some on CPUs.

`torchrun --nproc-per-node N train.py ...` starts them, and tells each by its environment which one it is.
"""

import contextlib
import datetime
import os
import signal
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from ..build import Failure

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
BY_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ
RANK, WORLD, LOCAL_RANK, LOCAL_WORLD = (int(os.environ[name]) for name in NAMES) if BY_TORCHRUN else (0, 1, 0, 1)

# How long to wait for a process that does not answer. torchrun notices at once when one ends.
PATIENCE = datetime.timedelta(minutes=5)


def check_environment() -> None:
    """Raises Failure if the environment speaks of several processes, and torchrun has not started them."""
    if not BY_TORCHRUN and (found := [name for name in NAMES[:2] if name in os.environ]):
        cure = "start several by `torchrun --nproc-per-node N train.py ...`; for a single one unset RANK and WORLD_SIZE"
        raise Failure(f"{' and '.join(found)} in the environment, but torchrun has not started this process: {cure}")


def lack_of_gpus() -> str | None:
    """Why these processes cannot have a GPU each, or None."""
    if (gpus := torch.cuda.device_count()) < LOCAL_WORLD:
        return f"{LOCAL_WORLD} processes, but {gpus} GPU(s): one process a GPU. Start {gpus}, or give --device cpu"
    return None


@contextlib.contextmanager
def connected(device_type: str) -> Iterator[None]:
    """Inside, torch.distributed works: NCCL among GPUs, gloo among CPUs. Does nothing for a single process.

    Raises:
        Failure: another process has ended, or does not answer.
    """
    if WORLD == 1:
        yield
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # so torchrun ends a process that waits in a collective
    if device_type == "cuda":
        torch.cuda.set_device(LOCAL_RANK)
    try:
        # After a restart by `torchrun --max-restarts` the store still has the addresses of the processes that ended,
        # and gloo would call them (torch 2.13): so each attempt has a prefix of its own.
        store, _, _ = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD, timeout=PATIENCE)
        yield
    except Failure:
        raise
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise Failure(f"process {RANK} of {WORLD}: another one has ended or does not answer ({reason})") from error
    dist.destroy_process_group()


def add_up(values: torch.Tensor) -> None:
    """Replace each process's values by the sum over all processes. Waits for all of them.

    gloo's own thread may release the tensor after we do. If Python is about to end then, the process is aborted
    (https://github.com/pytorch/pytorch/issues/190489; seen with torch 2.13): so we wait, and release it last.
    """
    dist.all_reduce(values)
    while values.device.type == "cpu" and values._use_count() > 1:
        time.sleep(0.0001)


def device(chosen: torch.device) -> torch.device:
    """Among several processes, each its own GPU."""
    return torch.device("cuda", LOCAL_RANK) if WORLD > 1 and chosen.type == "cuda" else chosen
