"""examples/llama: a whole model against transformers, against torch's functions, and against itself."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import cpp_extension

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "llama"
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 200,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 64
BIASES = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
KINDS = {"plain": {}, "biases, tied": BIASES, "llama 3": {"rope_parameters": LLAMA3}, "heads": {"num_key_value_heads": 4}}
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
everywhere = pytest.mark.parametrize("device", DEVICES)


class Lesson:
    """The modules of the folder, and models of them."""

    def __init__(self):
        os.environ["PATH"] = toolchain.tool_path()  # ninja
        sys.path.insert(0, str(FOLDER))
        cpp_extension.CUDA_HOME = torch.version.cuda and toolchain.environment().get("CUDA_HOME")
        for name in ("llama", "load", "generate", "plain"):
            setattr(self, name, importlib.import_module(name))

    def model(self, device="cpu", dtype=None, read=None, config=None, **bits):
        device, dtype = torch.device(device), dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
        config = config or self.llama.Config(**SMALL)
        read = read or self.load.random_weights(device, dtype)
        return self.llama.Llama(config, self.load.Loader(read, device, dtype, **bits))

    def generator(self, model, batch, capacity=100, **how):
        return self.generate.Generator(model, batch, capacity, **how)


@pytest.fixture(scope="module")
def files():
    return Lesson()


@pytest.fixture(scope="module")
def lesson(files):
    files.llama.build()
    return files


def prompts(*lengths):
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(512, (n,), generator=generator).tolist() for n in lengths]


def write_config(folder, **changes):
    found = SMALL | {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5} | changes
    (folder / "config.json").write_text(json.dumps({name: x for name, x in found.items() if x != "missing"}))
    return folder


def test_config(files, tmp_path):
    """Today's names of transformers, and those of earlier years."""
    found = files.load.read_config(write_config(tmp_path, head_dim=None, rope_theta=5e5, eos_token_id=[1, 2]))
    assert (found.head_dim, found.rope_theta, found.eos_token_id, found.rope_scaling) == (64, 5e5, (1, 2), None)
    found = files.load.read_config(write_config(tmp_path, rope_parameters={"rope_theta": 7e4, "rope_type": "default"}))
    assert (found.rope_theta, found.rms_norm_eps) == (7e4, 1e-5)
    found = files.load.read_config(write_config(tmp_path, rope_scaling=LLAMA3, num_key_value_heads="missing"))
    assert (found.rope_scaling, found.num_key_value_heads) == (LLAMA3, 4)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "architecture is Qwen3ForCausalLM, expected LlamaForCausalLM or"),
        ({"sliding_window": 4096, "architectures": ["MistralForCausalLM"]}, "sliding_window is 4096"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is {'quant_method': 'awq'}"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, expected silu"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type is yarn"),
        ({"head_dim": 80}, "head_dim is 80, expected 64 or 128"),
    ],
)
def test_refused_configs(files, tmp_path, changes, text):
    with pytest.raises(ValueError, match=text):
        files.load.read_config(write_config(tmp_path, **changes))


def test_rotations(files):
    """Of Llama 3: wavelengths far below the old context stay, far above it become 8 times as long."""
    config = files.llama.Config(**SMALL, rope_scaling=LLAMA3)
    (cos, sin), (old_cos, old_sin) = (files.llama.rotations(each, 9) for each in (config, files.llama.Config(**SMALL)))
    angles, old = torch.atan2(sin[1], cos[1]), torch.atan2(old_sin[1], old_cos[1])
    torch.testing.assert_close(angles[:2], old[:2])
    torch.testing.assert_close(angles[-8:], old[-8:] / 8)
    assert (angles.diff() < 0).all()


def test_greedy(files):
    for size in (512, 509, 128256):
        logits = torch.randn(3, size)
        assert torch.equal(files.generate.greedy(logits), logits.argmax(-1))


def test_sampler(files):
    """Only tokens that belong to the most probable ones, about as often as they should come; the first one always."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20000, 4)
    torch.manual_seed(0)
    shares = files.generate.sampler(1.0, 0.9)(logits).bincount(minlength=4) / len(logits)
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95, atol=0.02, rtol=0)
    assert (files.generate.sampler(0.5, 0.01)(logits) == 0).all()


@everywhere
def test_against_torch(lesson, device):
    """Logits after a prompt, and after each of some tokens that follow, for rows of different lengths."""
    found = []
    for kind in (lesson.plain.TorchCache, lesson.llama.Cache):
        model = lesson.model(device)
        if kind is lesson.plain.TorchCache:
            lesson.plain.set_norm(model)
            lesson.plain.take_apart(model)
        cache, logits = kind(model.config, 2, 60, model.embedding.dtype, model.embedding.device), []
        with torch.no_grad():
            for row, prompt in enumerate(prompts(30, 7)):
                logits.append(model(torch.tensor(prompt, device=device), cache, row, is_every=True))
            cache.counts.copy_(torch.tensor([[30, 7], [31, 8]]))
            for token in range(5):
                logits.append(model(torch.tensor([token, token + 9], device=device), cache))
                cache.counts += 1
        found.append(torch.cat(logits).float())
    error = (found[0] - found[1]).norm() / found[0].norm()
    assert error < (1e-5 if device == "cpu" else 0.01)


@everywhere
@pytest.mark.parametrize("cache", [None, torch.int8])
def test_rows_are_independent(lesson, device, cache):
    """To the bit, whatever the other rows say; and a second run writes the same."""
    model = lesson.model(device)
    generator = lesson.generator(model, 3, cache_dtype=cache)
    ours = prompts(17, 5, 33)
    written = list(zip(*generator.generate(ours, 30), strict=True))
    others = list(zip(*generator.generate([prompts(40)[0], ours[1], [3]], 30), strict=True))
    again = list(zip(*generator.generate(ours, 30), strict=True))
    assert written[1] == others[1]
    assert written == again
    assert len({*written}) == 3


@everywhere
def test_int4_is_dequantized_bf16(lesson, device):
    """4-bit weights give what the same model gives with dequantized weights, within bfloat16's rounding."""
    read = lesson.load.random_weights(torch.device(device), torch.bfloat16)
    quantize = lesson.llama.int4_linear.quantize

    def rounded(name, shape):
        weight = read(name, shape)
        is_linear = name.endswith("_proj.weight") or name == "lm_head.weight"
        return lesson.llama.int4_linear.dequantize(*quantize(weight)) if is_linear else weight

    tokens, found = torch.tensor(prompts(50)[0], device=device), []
    for bits in ({"read": read, "is_int4": True, "is_last_int4": True}, {"read": rounded}, {"read": read}):
        model = lesson.model(device, torch.bfloat16, **bits)
        cache = lesson.llama.Cache(model.config, 1, 60, torch.bfloat16, tokens.device)
        with torch.no_grad():
            found.append(model(tokens, cache, 0, is_every=True).float())
    close, far = ((found[0] - other).norm() / other.norm() for other in found[1:])
    assert close < 0.02 < far


@everywhere
def test_seeds(lesson, device):
    model = lesson.model(device)
    generator = lesson.generator(model, 2, choose=lesson.generate.sampler(1.0, 0.9))
    written = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        written.append(list(generator.generate(prompts(9, 4), 20)))
    assert written[0] == written[1] != written[2]


def test_full_context(lesson):
    """Refused before anything is written; the last token that fits is still right."""
    model = lesson.model()
    generator = lesson.generator(model, 1, 40)
    with pytest.raises(ValueError, match="30 tokens and 12 new ones: the cache has room for 40"):
        generator.generate(prompts(30), 12)
    assert not generator.cache.tensors[0].any()
    with pytest.raises(ValueError, match="none of them empty"):
        generator.generate([[]], 3)
    with pytest.raises(ValueError, match="201 tokens: the model was made for 200"):
        lesson.generator(model, 1, 201)
    long = list(lesson.generator(model, 1, 100).generate(prompts(30), 11))
    assert list(generator.generate(prompts(30), 11)) == long


def test_program(run):
    told = run(FOLDER / "run.py", "--tokens", 12, "--weights", "float32", "--batch", 2).stdout
    assert "the logits are those of torch's functions" in told
    assert "tokens_per_s" in told
