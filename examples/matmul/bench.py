"""Time gated_linear against torch.matmul + a compiled silu * mul, and CUTLASS. Needs a Hopper GPU.

    python3 examples/matmul/bench.py --json FILE

Each contestant runs for a while before it is timed, in turn with the others: under products of this size the GPU's
clock falls. CUTLASS takes part if `nvidia-cutlass` is installed.
"""

import functools
import importlib.util
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from gated_linear import HERE, build, gate, gated_linear, interleave, operators, reference

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson  # of the workbench only what runs a lesson's programs,
from lab.bench import clock  # and a clock

K, H, ROWS = 4096, 14336, (4096, 16384)
OURS = "gated_linear"


@functools.cache
def load_cutlass() -> Callable | None:
    """gated_linear by CUTLASS (examples/ways), which compiles for about a minute; None where it is not installed."""
    if not importlib.util.find_spec("cutlass_library"):
        return None
    sys.path.insert(0, str(HERE.parent / "ways"))
    return importlib.import_module("cutlass_gated").gated_linear


def measure_rows(rows: int) -> dict:
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    xs = [make(rows, K) for _ in range(2)]
    weights = [(make(H, K) / K**0.5, make(H, K) / K**0.5) for _ in xs]
    ws = [interleave(*pair) for pair in weights]
    compiled_gate = torch.compile(gate, fullgraph=True, dynamic=False)
    functions = {
        "torch.matmul": lambda x, w: x @ w.t(),  # without silu * mul: the floor of a product
        "torch.matmul + compiled silu * mul": lambda x, w: compiled_gate(x @ w.t()),
        OURS: gated_linear,
    }
    calls = {name: [partial(f, x, w) for x, w in zip(xs, ws, strict=True)] for name, f in functions.items()}
    if cutlass := load_cutlass():
        calls["CUTLASS"] = [partial(cutlass, x, *pair) for x, pair in zip(xs, weights, strict=True)]
    right = reference(xs[0][:64].double(), ws[0].double())
    for name, each in list(calls.items())[1:]:
        error = ((each[0]()[:64] - right).norm() / right.norm()).item()
        assert error < 0.01, (name, error)
    found = clock.steady(calls, rounds=5, warm_s=0.06)
    row = {"rows": rows, "k": K, "h": H} | {name: statistics.median(samples) for name, samples in found.items()}
    others = [samples for name, samples in found.items() if name not in ("torch.matmul", OURS)]
    row["of_best"] = statistics.median(ours / min(rest) for ours, *rest in zip(found[OURS], *others, strict=True))
    return row


def is_ready() -> bool:
    return torch.cuda.get_device_capability()[0] == 9 and operators.is_ready(build)


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), is_ready, lambda _: map(measure_rows, ROWS))
