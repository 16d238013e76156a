"""Cost of torch's headers: seconds to compile a file that includes them and nothing else.

python3 -m lab.headers --json FILE
"""

import argparse
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch

from . import cli, files
from .build import toolchain

CASES = {
    "torch/extension.h": ["torch/extension.h"],
    "torch/all.h": ["torch/all.h"],
    "torch/csrc/utils/pybind.h": ["torch/csrc/utils/pybind.h"],
    "torch/library.h, and ATen's single headers": ["torch/library.h", "ATen/core/Tensor.h", "ATen/ops/empty_like.h"],
    "torch/csrc/stable/*.h": [f"torch/csrc/stable/{name}.h" for name in ("library", "ops", "tensor")],
}


def measure(headers: list[str]) -> float:
    """Seconds, by the C++ compiler that the builds use, with -O2, in one process."""
    torchs = Path(torch.__file__).parent / "include"
    folders = [torchs, torchs / "torch/csrc/api/include", sysconfig.get_path("include")]
    stable = any("stable" in header for header in headers)
    flags = ["-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] if stable else ["-std=c++20"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "include.cpp")
        source.write_text("".join(f"#include <{header}>\n" for header in headers))
        command = [toolchain.host_compiler(), "-O2", "-fPIC", *flags, *(f"-I{path}" for path in folders)]
        start = time.perf_counter()
        done = subprocess.run([*command, "-c", source, "-o", f"{folder}/include.o"], capture_output=True, text=True)
        seconds = time.perf_counter() - start
    if done.returncode:
        raise toolchain.BuildError(f"{shlex.join(map(str, command))} failed: {done.stderr.splitlines()[0]}")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m lab.headers", description="Time the compilation of torch's headers."
    )
    parser.add_argument("--json", type=cli.writable, metavar="FILE", help="write the figures to FILE")
    args = parser.parse_args()
    content = {"environment": cli.environment(torch.device("cpu")), "headers": []}
    content["environment"]["command"] = "python3 -m lab.headers --json FILE"
    for name, headers in CASES.items():
        content["headers"].append({"headers": name, "seconds": measure(headers)})
        print(f"{name:<45}{content['headers'][-1]['seconds']:>6.1f} s", flush=True)
    if args.json:
        files.write(args.json, files.to_json(content))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main))
