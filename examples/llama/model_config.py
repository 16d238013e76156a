"""config.json, as transformers writes it, read and checked: a file that has been edited by hand gives one clear line.

RULES says what llama.py computes. Everything else in the file is ignored.
"""

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from llama import Config


@dataclass(frozen=True)
class Range:
    """Numbers from low to high. An int counts as a float; NaN, infinity and True are refused."""

    kind: type
    low: float
    high: float

    def accepts(self, value: object) -> bool:
        return type(value) in (int, self.kind) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.kind.__name__}, {self.low} to {self.high}"


class OneOf:
    """Some values, each of its own type: 1 is not True."""

    def __init__(self, *values: object) -> None:
        self.values = values

    def accepts(self, value: object) -> bool:
        return any(type(value) is type(each) and value == each for each in self.values)

    def __str__(self) -> str:
        return " or ".join(map(str, self.values))


SIZES = [field.name for field in fields(Config) if field.default is MISSING]
COMPUTED = {"num_key_value_heads", "head_dim"}  # where the file leaves them out
LLAMA3 = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]  # Llama 3's rotation
SIZE = Range(int, 1, 2**31 - 1)
TOKEN = Range(int, 0, 2**31 - 1)
BOTH_RULES = {"rope_theta": Range(float, 1, 1e38), "partial_rotary_factor": OneOf(1, 1.0)}
ROPE_RULES = (
    BOTH_RULES
    | {  # of rope_parameters, or of rope_scaling in older files
        **dict.fromkeys(["rope_type", "type"], OneOf("default", "llama3")),
        **dict.fromkeys(LLAMA3[:3], Range(float, 1e-6, 1e6)),
        LLAMA3[3]: SIZE,
    }
)
RULES = {
    "architectures": OneOf(["LlamaForCausalLM"], ["MistralForCausalLM"], ["llama"], ["mistral"]),
    **dict.fromkeys([*SIZES, "max_position_embeddings"], SIZE),
    **dict.fromkeys(["attention_bias", "mlp_bias"], OneOf(False)),
    **dict.fromkeys(["sliding_window", "quantization_config"], OneOf(None)),
    "head_dim": OneOf(64, 128),
    "hidden_act": OneOf("silu"),
    "rms_norm_eps": Range(float, 0, 1),
    "tie_word_embeddings": OneOf(False, True),
    **BOTH_RULES,
}


def as_object(where: object, found: object) -> dict:
    """ValueError for what is no JSON object."""
    if not isinstance(found, dict):
        raise ValueError(f"{where} has {found!r:.80}, expected an object: copy it again")
    return found


def read_json(file: Path) -> dict:
    """An object; null counts as absent."""
    try:
        found = json.loads(file.read_text("utf-8"), object_pairs_hook=lambda x: {k: v for k, v in x if v is not None})
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}: copy it again") from None
    return as_object(file, found)


def check(file: Path, found: dict, rules: dict[str, Range | OneOf]) -> None:
    """ValueError for a value that breaks its rule. What is absent breaks none."""
    for name, rule in rules.items():
        if name in found and not rule.accepts(found[name]):
            raise ValueError(f"{file}: {name} is {found[name]!r:.80}, expected {rule}")


def check_present(file: Path, found: dict, names: list[str]) -> None:
    if lost := [name for name in names if name not in found]:
        raise ValueError(f"{file} lacks {', '.join(lost)}: copy it again")


def read_rope(file: Path, found: dict) -> dict:
    """How tokens are rotated: rope_parameters, or rope_scaling in older files."""
    parts = [as_object(f"{file}: {name}", found.get(name, {})) for name in ("rope_parameters", "rope_scaling")]
    rope = parts[0] or parts[1]
    check(file, rope, ROPE_RULES)
    if is_llama3(rope):
        check_present(file, rope, LLAMA3)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if low >= high:
            raise ValueError(f"{file}: low_freq_factor is {low}, expected less than high_freq_factor, {high}")
    return rope


def is_llama3(rope: dict) -> bool:
    return rope.get("rope_type", rope.get("type")) == "llama3"


def read_config(folder: Path) -> Config:
    """From config.json; ValueError for a model that llama.py does not compute, and for a damaged file."""
    found = read_json(file := folder / "config.json")
    found.setdefault("architectures", [found.get("model_type")])
    check(file, found, RULES)
    check_present(file, found, [name for name in SIZES if name not in COMPUTED])
    heads = found["num_attention_heads"]
    key_heads = found.setdefault("num_key_value_heads", heads)
    found.setdefault("head_dim", found["hidden_size"] // heads)
    check(file, found, RULES)  # now head_dim is there
    if heads % key_heads or heads > 16 * key_heads:
        raise ValueError(f"{file}: {heads} heads and {key_heads} key heads, expected 1 to 16 heads for each key head")
    rope = read_rope(file, found)
    if "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
    found["rope_scaling"] = rope if is_llama3(rope) else None
    ends = found.get("eos_token_id", [])
    ends = ends if isinstance(ends, list) else [ends]
    for end in ends:
        check(file, {"eos_token_id": end}, {"eos_token_id": TOKEN})
    found["eos_token_id"] = tuple(ends)
    return Config(**{field.name: found[field.name] for field in fields(Config) if field.name in found})
