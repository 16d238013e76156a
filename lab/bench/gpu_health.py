"""Was the GPU fit to be measured? nvidia-smi knows, before and after.

A card that is too hot or at its power limit lowers its clock, and a card that another program uses is shared. Times
from then are real, but say little about the operator.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch

BUSY_PERCENT = 5

# Microseconds, since the driver was loaded, for which the clock was held down, by cause.
COUNTERS = ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sync_boost")


@contextmanager
def watched(device: torch.device, warnings: list[str]) -> Iterator[None]:
    """Append to `warnings` every reason to doubt the times that are measured inside."""
    before = _read(device)
    if before.get("utilization.gpu", 0) >= BUSY_PERCENT:
        warnings.append(f"the GPU was {before['utilization.gpu']}% busy before we started: another program uses it")
    try:
        yield
    finally:
        after = _read(device)
        for name in COUNTERS:
            key = f"clocks_event_reasons_counters.{name}"
            if (held_down := after.get(key, 0) - before.get(key, 0)) > 0:
                warnings.append(f"the GPU's clock was held down for {held_down / 1e6:.2f} s meanwhile ({name})")


def _read(device: torch.device) -> dict[str, int]:
    """The counters by name; none with a driver that has no such counters (before 2024)."""
    fields = ["utilization.gpu", *(f"clocks_event_reasons_counters.{name}" for name in COUNTERS)]
    command = ["nvidia-smi", f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}"]
    command += [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in done.stdout.split(",")]
    return {field: int(value) for field, value in zip(fields, values, strict=False) if value.isdecimal()}
