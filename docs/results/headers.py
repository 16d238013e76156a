"""Cost of torch's headers: seconds to compile a file that includes them and nothing else.

python3 docs/results/headers.py --json FILE
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab import cli, files
from lab.build import toolchain

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
        subprocess.run([*command, "-c", source, "-o", f"{folder}/include.o"], check=True)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    rows = []
    for name, headers in CASES.items():
        rows.append({"headers": name, "seconds": measure(headers)})
        print(f"{name:<45}{rows[-1]['seconds']:>6.1f} s", flush=True)
    files.write(args.json, files.to_json({"environment": cli.environment(torch.device("cpu")), "headers": rows}))


if __name__ == "__main__":
    main()
