"""add2 against the operators that people would copy instead: seconds to build, microseconds a call, GB/s.

    python3 docs/results/compare.py --extension-cpp FOLDER --json FILE

FOLDER is extension_cpp_stable in a clone of github.com/pytorch/extension-cpp. "article" is the operator as published in
the articles that this project started from: torch/extension.h, pybind11, a grid-stride loop of 1024 threads a block.
Each is built from nothing, by the command that its authors give.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab import cli, files  # noqa: E402
from lab.bench import calls, clock, host_cost  # noqa: E402
from lab.build import load, toolchain  # noqa: E402

ARTICLE_KERNEL = """
__global__ void add2(float* c, const float* a, const float* b, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
void launch_add2(float* c, const float* a, const float* b, int n) { add2<<<(n + 1023) / 1024, 1024>>>(c, a, b, n); }
"""
ARTICLE_BINDING = """
#include <torch/extension.h>
void launch_add2(float* c, const float* a, const float* b, int n);
void torch_launch_add2(torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b, int n) {
  launch_add2((float*)c.data_ptr(), (const float*)a.data_ptr(), (const float*)b.data_ptr(), n);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("torch_launch_add2", &torch_launch_add2); }
"""


def build_article(folder: Path):
    (folder / "article_kernel.cu").write_text(ARTICLE_KERNEL)
    (folder / "article.cpp").write_text(ARTICLE_BINDING)
    sources = [str(folder / name) for name in ("article.cpp", "article_kernel.cu")]
    return cpp_extension.load("article", sources, build_directory=str(folder), extra_cflags=["-O3"])


def build_extension_cpp(source: Path, folder: Path):
    copy = folder / "extension_cpp_stable"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info"))
    (folder / "README.md").touch()  # its setup.py reads it
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]  # pip's isolation would fetch a second torch
    subprocess.run(command, cwd=copy, check=True, stdout=subprocess.DEVNULL)
    sys.path.insert(0, str(copy))
    import extension_cpp_stable

    return extension_cpp_stable.ops


def timed(build):
    start = time.perf_counter()
    return build(), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extension-cpp", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    os.environ |= toolchain.environment()
    device = torch.device("cuda", 0)
    environment = cli.environment(device)  # with the command, before anything changes sys.argv
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCH_EXTENSIONS_DIR"] = str(folder / "cache")
        (folder / "article").mkdir()
        article, article_s = timed(lambda: build_article(folder / "article"))
        official, official_s = timed(lambda: build_extension_cpp(args.extension_cpp, folder))
        _, add2_s = timed(lambda: load("jit"))
        import add2

        rows = [
            {"operator": name, "figure": "build", "seconds": seconds}
            for name, seconds in (("article", article_s), ("extension-cpp", official_s), ("add2", add2_s))
        ]
        n = 1024
        a, b, c = torch.randn(3, n, device=device)
        grad = torch.randn(n, device=device, requires_grad=True)
        compared = {
            "torch.add(out)": lambda: torch.add(a, b, out=c),
            "article: torch_launch_add2": lambda: article.torch_launch_add2(c, a, b, n),
            "extension-cpp: myadd_out": lambda: official.myadd_out(a, b, c),
            "add2: torch_launch_add2": lambda: add2.torch_launch_add2(c, a, b, n),
            "a + b": lambda: a + b,
            "extension-cpp: mymuladd": lambda: official.mymuladd(a, b, 1.0),
            "add2: add2": lambda: add2.add2(a, b),
            "a + b, with grad": lambda: grad + b,
            "extension-cpp: mymuladd, with grad": lambda: official.mymuladd(grad, b, 1.0),
            "add2: add2, with grad": lambda: add2.add2(grad, b),
        }
        rows += [{"call": name, "n": n, "host_us": us} for name, us in host_cost.medians(compared, device).items()]
        # The article's kernel runs on stream 0: a CUDA graph cannot hold it. Its kernel goes through our clock on a
        # stream that is stream 0, so it is timed by events, and so is everything it is compared with.
        sets = calls.buffers(2**26, torch.float32, device)
        flush = clock.flush(device)
        for name, call in {
            "torch.add(out)": lambda c, a, b: torch.add(a, b, out=c),
            "article": lambda c, a, b: article.torch_launch_add2(c, a, b, c.numel()),
            "extension-cpp": lambda c, a, b: official.myadd_out(a, b, c),
            "add2": lambda c, a, b: add2.torch_launch_add2(c, a, b, c.numel()),
        }.items():
            timing = clock.events([functools.partial(call, *tensors) for tensors in sets], flush)
            rows.append({"call": name, "n": 2**26, "clock": "events", "median_us": timing.median_us})
            rows[-1]["gb_per_s"] = 3 * 4 * 2**26 / timing.median_us / 1e3
    for row in rows:
        print(row)
    files.write(args.json, files.to_json({"environment": environment, "compare": rows}))


if __name__ == "__main__":
    main()
