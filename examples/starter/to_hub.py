"""Write hub/, which Hugging Face's package `kernels` loads: python3 to_hub.py, after a build. Each backend has a folder
with the same library: python3 to_hub.py cpu cu126 cu130 (default: this torch's)."""

import json
import platform
import shutil
import sys
from pathlib import Path

import torch

NAME = "scaled_relu"
of_torch = "cu" + torch.version.cuda.replace(".", "") if torch.version.cuda else "cpu"
for backend in sys.argv[1:] or [of_torch]:
    variant = f"torch-stable-abi210-{backend}-{platform.machine()}-linux"  # 210: torch 2.10 and later, as in setup.py
    folder = Path("hub", "build", variant)
    shutil.copytree(Path("src", NAME), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = {"id": NAME, "name": NAME.replace("_", "-"), "version": 1, "license": "MIT", "python-depends": []}
    metadata["backend"] = {"type": "cpu" if backend == "cpu" else "cuda"}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    print(folder)
