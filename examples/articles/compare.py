"""add2 and the operators that people would copy instead, like with like. It takes a few minutes on a GPU.

    python3 examples/articles/compare.py FOLDER --json FILE

FOLDER is extension_cpp_stable in a clone of github.com/pytorch/extension-cpp. articles.py is the code of the articles
that this project started from.

Builds: a new process, from nothing to a loaded operator, for this GPU only. Run the tests first, so that the disk's
cache has the compilers and torch's headers.
Host times: one process with all operators, over the time of torch's own call of one operator; each is the median of
three rounds. extension-cpp's operator with a registered gradient is mymuladd; on 1024 elements what it computes takes
no longer than an addition.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab import lesson, sources, toolchain  # noqa: E402
from lab.bench import calls, clock, host_cost  # noqa: E402
from lab.build import leftovers  # noqa: E402

SETUP = "python3 setup.py -q build_ext --inplace && python3 -c 'import torch, {}'"
LOAD = "import articles; articles.module(with_cuda=True)"
BUILDS = {  # each runs in the folder of its operator
    ("extension-cpp", "build setup"): SETUP.format("extension_cpp_stable"),
    ("add2", "build setup"): SETUP.format("add2"),
    ("articles", "build jit"): f"python3 -c '{LOAD}'",
    ("add2", "build jit"): "python3 -c 'from lab import build; build.load(\"jit\")'",
}


def measure_builds(folder: Path, official: Path) -> Iterator[dict]:
    """Build everything in an empty folder."""
    for name, source in {"extension-cpp": official, "articles": ROOT / "examples/articles", "add2": ROOT}.items():
        shutil.copytree(source, folder / name, ignore=leftovers)
    (folder / "README.md").touch()  # the setup.py of extension-cpp reads it
    for (operator, what), command in BUILDS.items():
        start = time.perf_counter()
        subprocess.run(command, shell=True, cwd=folder / operator, check=True, stdout=subprocess.DEVNULL)
        yield {"what": what, "operator": operator, "seconds": time.perf_counter() - start}


def measure_calls(folder: Path) -> Iterator[dict]:
    """Host and GPU times of the operators that were built in this folder."""
    device = torch.device("cuda", 0)
    sys.path[:0] = [str(folder / name) for name in ("extension-cpp", "add2", "articles")]
    import articles
    import extension_cpp_stable

    import add2

    theirs, article, n = extension_cpp_stable.ops, articles.module(with_cuda=True), 1024
    into = {
        "torch": lambda c, a, b, n: torch.add(a, b, out=c),
        "add2": lambda c, a, b, n: add2.torch_launch_add2(c, a, b, n),
        "extension-cpp": lambda c, a, b, n: theirs.myadd_out(a, b, c),
        "articles": lambda c, a, b, n: article.torch_launch_add2(c, a, b, n),
    }
    new = {
        "torch": lambda a, b: a + b,
        "add2": lambda a, b: add2.add2(a, b),
        "extension-cpp": lambda a, b: theirs.mymuladd(a, b, 1.0),
    }
    a, b, c = torch.randn(3, n, device=device)
    grad = torch.randn(n, device=device, requires_grad=True)
    host = {("out", operator): partial(call, c, a, b, n) for operator, call in into.items()}
    host |= {("new", operator): partial(call, a, b) for operator, call in new.items()}
    host |= {("grad", operator): partial(call, grad, b) for operator, call in new.items()}
    rounds = [host_cost.medians(host, device) for _ in range(3)]
    us = {call: statistics.median(found[call] for found in rounds) for call in host}
    # The articles' kernel runs on stream 0, which a CUDA graph cannot hold: so all of these are timed by events.
    sets, flush = calls.buffers(2**26, torch.float32, device), clock.flush(device)
    for operator, call in into.items():
        us["gpu", operator] = clock.events([partial(call, *each, 2**26) for each in sets], flush).median_us
    for (what, operator), value in us.items():
        yield {"what": what, "operator": operator, "us": value, "ratio_to_torch": value / us[what, "torch"]}


def measure(official: Path, environment: dict) -> Iterator[dict]:
    # add2 is imported from an installed copy.
    environment["sources"] = sources.state(("include", "kernel", "add2"))
    gpu = "{}.{}".format(*torch.cuda.get_device_capability())
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= toolchain.environment() | {"TORCH_CUDA_ARCH_LIST": gpu, "TORCH_EXTENSIONS_DIR": f"{folder}/cache"}
        cpp_extension.CUDA_HOME = os.environ.get("CUDA_HOME")  # it was read at import
        yield from measure_builds(Path(folder), official)
        yield from measure_calls(Path(folder))


if __name__ == "__main__":
    parser = lesson.options(__doc__)
    parser.add_argument("folder", type=Path, help="extension_cpp_stable of a clone of pytorch/extension-cpp")
    args = parser.parse_args()
    if not (args.folder / "setup.py").exists():
        parser.error(f"there is no {args.folder}/setup.py")
    lesson.report(args, lambda: True, partial(measure, args.folder))
