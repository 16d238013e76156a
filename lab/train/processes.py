"""Several processes that train one network together: one for each GPU, or some on CPUs.

`torchrun --nproc-per-node N train.py ...` starts them and tells each by its environment which one it is.
"""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from . import Failure

RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
LOCAL_WORLD = int(os.environ.get("LOCAL_WORLD_SIZE", 1))

# How long to wait for a process that does not answer. One that ends is noticed at once, by torchrun.
PATIENCE = datetime.timedelta(minutes=5)


@contextlib.contextmanager
def one_voice() -> Iterator[None]:
    """Of several processes the first one speaks: what the others print inside goes nowhere. An error that leaves it is
    told by each."""
    with contextlib.ExitStack() as stack:
        if RANK:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield


def complaint(device_type: str) -> str | None:
    """Why these processes cannot work together, or None."""
    gpus = torch.cuda.device_count()
    if device_type == "cuda" and gpus < LOCAL_WORLD:
        return f"{LOCAL_WORLD} processes, but {gpus} GPU(s): one process a GPU. Start {gpus}, or give --device cpu"
    return None


@contextlib.contextmanager
def together(device_type: str) -> Iterator[None]:
    """Inside, torch.distributed works: NCCL among GPUs, gloo among CPUs. Nothing for a process that is alone.

    Raises:
        Failure: another process has ended, or does not answer.
    """
    if WORLD == 1:
        yield
        return
    if device_type == "cuda":
        torch.cuda.set_device(LOCAL_RANK)
    try:
        # After a restart by `torchrun --max-restarts` the store still has the addresses of the processes that ended,
        # and gloo would call them (torch 2.13): so each attempt has names of its own in it.
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


@contextlib.contextmanager
def first_of_the_machine() -> Iterator[None]:
    """One process of each machine does what is inside before the others do: it builds, and they find it built."""
    if WORLD > 1 and LOCAL_RANK:
        add_up(torch.zeros(1))
    yield
    if WORLD > 1 and not LOCAL_RANK:
        add_up(torch.zeros(1))  # on the CPU, by gloo; a barrier would be NCCL's, and needs the device chosen


def add_up(values: torch.Tensor) -> None:
    """Make each process's values the sum over all processes. Waits for all of them.

    gloo's own thread may let go of the tensor after we have. If Python is about to end then, the process is aborted
    (https://github.com/pytorch/pytorch/issues/190489; seen with torch 2.13): so we are the last to let go.
    """
    dist.all_reduce(values)
    while values.device.type == "cpu" and values._use_count() > 1:
        time.sleep(0.0001)


def device(asked: torch.device) -> torch.device:
    """Among several processes, each its own GPU."""
    return torch.device("cuda", LOCAL_RANK) if WORLD > 1 and asked.type == "cuda" else asked
