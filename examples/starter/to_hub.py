"""Write hub/, which Hugging Face's package `kernels` loads: python3 to_hub.py, after a build. Each backend has a folder
with the same library: python3 to_hub.py cpu cu126 cu130 (default: this torch's)."""

import json
import platform
import shutil
import sys
from pathlib import Path

import torch
from setuptools.config.pyprojecttoml import read_configuration

project = read_configuration("pyproject.toml")["project"]  # with the version, which it reads from __init__.py
name = project["name"]
if not Path("src", name, "_C.so").exists():
    sys.exit("to_hub.py: there is no library yet; build it: python3 setup.py build_ext --inplace")
metadata = {
    "id": name,
    "name": name.replace("_", "-"),
    "version": int(project["version"].split(".")[0]),  # the Hub counts only versions whose interface differs
    "license": project["license"],
    "python-depends": [],
}
of_torch = "cu" + torch.version.cuda.replace(".", "") if torch.version.cuda else "cpu"
for backend in sys.argv[1:] or [of_torch]:
    variant = f"torch-stable-abi210-{backend}-{platform.machine()}-linux"  # 210: torch 2.10 and later, as in setup.py
    folder = Path("hub", "build", variant)
    shutil.copytree(Path("src", name), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    metadata["backend"] = {"type": "cpu" if backend == "cpu" else "cuda"}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    print(folder)
