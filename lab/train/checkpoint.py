"""Checkpoints: one file, written in one piece after each epoch, and read without running code that may be in it.
A line with a checksum, then the bytes of torch.save(): torch.load() itself does not notice every damaged byte."""

import hashlib
import io
from pathlib import Path

import torch
from torch import nn

from .. import files


def save(path: Path, settings: dict, network: nn.Module, optimizer: torch.optim.Optimizer, history: dict) -> None:
    content = {"settings": settings, "network": network.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content | {"history": history}, buffer := io.BytesIO())
    files.write(path, _first_line(buffer.getvalue()) + buffer.getvalue())


def _first_line(content: bytes) -> bytes:
    return f"checkpoint 2 of train.py, sha256 {hashlib.sha256(content).hexdigest()}\n".encode()


def load(path: Path, settings: dict | None = None) -> dict:
    """The content of a checkpoint, on the CPU. ValueError if it is not whole, or from a run with other settings."""
    try:
        line, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if line + b"\n" != _first_line(content):
        raise ValueError(f"{path} is not a checkpoint of train.py, or damaged: its checksum differs. Give an older one")
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for name, value in (settings or {}).items():
        if (other := found["settings"].get(name)) != value:
            raise ValueError(f"{path} comes from a run with --{name} {other}, and this one has --{name} {value}")
    return found
