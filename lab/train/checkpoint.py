"""Checkpoints: one file, written in one piece after each epoch, read without running code that may be in it."""

import io
import pickle
from pathlib import Path

import torch
from torch import nn

from .record import write
from .training import History


def save(path: Path, settings: dict, network: nn.Module, optimizer: torch.optim.Optimizer, history: History) -> None:
    content = {"settings": settings, "network": network.state_dict(), "optimizer": optimizer.state_dict()}
    buffer = io.BytesIO()
    torch.save(content | {"history": history.as_dict()}, buffer)
    write(path, buffer.getvalue())


def load(path: Path, settings: dict) -> dict:
    """What save() has written, on the CPU.

    Raises:
        ValueError: no such file, not a whole checkpoint, or one of a run with other settings.
    """
    try:
        file = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        found = {name: content["settings"][name] for name in settings}
        content["network"], content["optimizer"], History(**content["history"])
    except (RuntimeError, OSError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise ValueError(f"{path} is not a whole checkpoint of train.py's ({reason})") from error
    for name, value in settings.items():
        if found[name] != value:
            raise ValueError(f"{path} is of a run with --{name} {found[name]}, and this one has --{name} {value}")
    return content


def restore(content: dict, network: nn.Module, optimizer: torch.optim.Optimizer) -> History:
    """Put network and optimizer where they were; returns the history until then."""
    network.load_state_dict(content["network"])
    optimizer.load_state_dict(content["optimizer"])
    return History(**content["history"])
