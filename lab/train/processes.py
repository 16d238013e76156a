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

from .. import Failure

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default


RANK, WORLD = _number("RANK", 0), _number("WORLD_SIZE", 1)
LOCAL_RANK, LOCAL_WORLD = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1)

# How long to wait for a process that does not answer. torchrun notices at once when one ends.
PATIENCE = datetime.timedelta(minutes=5)


def check_environment() -> None:
    """Raises Failure if the environment does not say which one of several processes this is."""
    if not {"RANK", "WORLD_SIZE"} & set(os.environ):
        return
    cure = "start several by `torchrun --nproc-per-node N train.py ...`; for a single one unset RANK and WORLD_SIZE"
    if missing := [name for name in NAMES if name not in os.environ]:
        raise Failure(f"the environment has RANK or WORLD_SIZE in it, and no {', '.join(missing)}: {cure}")
    for name in NAMES:
        if name != "MASTER_ADDR" and _number(name, -1) < 0:
            raise Failure(f"{name}={os.environ[name]} in the environment is not a number: {cure}")
    if not (RANK < WORLD and LOCAL_RANK < LOCAL_WORLD <= WORLD):
        values = ", ".join(f"{name}={os.environ[name]}" for name in NAMES[:4])
        raise Failure(f"{values} in the environment do not belong together: {cure}")


@contextlib.contextmanager
def first_speaks() -> Iterator[None]:
    """Only the first process prints: the output of the others goes nowhere. Each prints an error that leaves this."""
    with contextlib.ExitStack() as stack:
        if RANK:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield


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


@contextlib.contextmanager
def first_builds() -> Iterator[None]:
    """On each machine one process goes ahead: it builds, and the others find it built."""
    if WORLD > 1 and LOCAL_RANK:
        add_up(torch.zeros(1))
    yield
    if WORLD > 1 and not LOCAL_RANK:
        add_up(torch.zeros(1))  # on the CPU, by gloo; a barrier would be NCCL's, and needs the device chosen


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
