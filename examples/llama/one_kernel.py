"""A step of a Llama in one kernel, which stays on the GPU for the whole step (persistent/step.cu): for one text or two,
4-bit weights in all layers, the sizes of an 8B model, and compute capability 9.0. docs/18_llama.md explains it."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from generate import Generator, greedy
from llama import Llama, int4_linear, operators
from torch import Tensor, nn

KERNELS = "examples/llama/persistent"  # a measurement notes the state of these files
SOURCE = Path(__file__).resolve().parents[2] / KERNELS / "step.cu"
ROWS, COLUMNS, SPLIT_ROWS = 16, 128, 1024  # of a unit; rows that are packed anew at a time
HIDDEN, INNER, HEAD, GROUP = 4096, 14336, 128, 4  # the kernel's sizes; GROUP: heads of a key head
MOST_ZERO = 32  # 32 x 16 x 128 columns x 32512, the largest x, is less than 2^31


@functools.cache
def launcher(texts: int) -> Callable:
    """Compile the kernel for so many texts. Returns its launcher."""
    flags = "-arch=sm_90", f"-DTEXTS={texts}"
    return operators.load_launcher(f"llama_step_{texts}", SOURCE, *flags, function="launch_step")


def units(layer: nn.Module) -> Tensor:
    """The weight of an Int4Linear in the kernel's order: uint8 [N/16, K/128, 1072], on the same device.

    A unit has 16 rows and 128 columns: 1024 bytes of codes, 16 scales of bfloat16, 16 zeros. A byte has the code of
    column c in its lower and that of column c + 64 in its upper half. Row 2 g + i and column c = 32 v + 16 h + 4 t + j
    are byte j of word 2 h + i of lane 4 g + t of the v-th 512 bytes: a lane finds its part of two products there. N is
    a multiple of 16, K one of 128.
    """
    parts = layer.packed.split(SPLIT_ROWS // 64), layer.scale.split(SPLIT_ROWS, 1), layer.zero.split(SPLIT_ROWS, 1)
    return torch.cat([_units_of(*part) for part in zip(*parts, strict=True)])


def _units_of(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    codes = int4_linear.dequantize(packed, torch.ones_like(scale), torch.zeros_like(zero)).to(torch.uint8)
    n, groups = codes.shape[0] // ROWS, codes.shape[1] // COLUMNS
    codes = codes.view(n, 8, 2, groups, 2, 2, 2, 4, 4)  # g, i; the half of the byte, v, h, t, j
    halves = codes.permute(4, 0, 3, 5, 1, 7, 6, 2, 8).reshape(2, n, groups, ROWS * COLUMNS // 2)
    affine = [x.view(groups, n, ROWS).transpose(0, 1).contiguous().view(torch.uint8) for x in (scale, zero)]
    return torch.cat([halves[0] | halves[1] << 4, *affine], 2)


def check(model: Llama, texts: int) -> None:
    """ValueError for a model, or a number of texts, that the kernel does not compute."""
    config = model.config
    if texts not in (1, 2):
        raise ValueError(f"one kernel: {texts} texts, expected 1 or 2")
    layers = [model.last, *(x for each in model.layers for x in (*each.qkv, each.o, *each.gate_up, each.down))]
    sizes = (config.hidden_size, config.intermediate_size, config.head_dim)
    if sizes != (HIDDEN, INNER, HEAD) or config.num_attention_heads != GROUP * config.num_key_value_heads:
        raise ValueError(
            f"one kernel: the model has sizes {sizes}, expected {(HIDDEN, INNER, HEAD)}, 4 heads per key head"
        )
    if config.num_attention_heads * HEAD != HIDDEN or config.num_hidden_layers > 254:
        raise ValueError(
            f"one kernel: {config.num_attention_heads} heads, expected {HIDDEN // HEAD}; at most 254 layers"
        )
    if not all(isinstance(x, int4_linear.Int4Linear) for x in layers) or len(layers) != 4 * len(model.layers) + 1:
        raise ValueError(
            "one kernel: expected 4 bits in all layers, also the last one; q, k, v as one, gate and up as one"
        )
    if any(x.bias is not None for x in layers) or not all(each.gate_up[0].gated for each in model.layers):
        raise ValueError("one kernel: expected products without a bias; silu(gate) * up within the product of both")
    if (zero := max(int(x.zero.max()) for x in layers)) > MOST_ZERO:
        raise ValueError(f"one kernel: a zero is {zero}, expected at most {MOST_ZERO}: its products have 32 bits")
    device = model.embedding.device
    if model.embedding.dtype != torch.bfloat16 or not model.embedding.is_cuda:
        raise ValueError(f"one kernel: {model.embedding.dtype} on {device}, expected bfloat16 on a GPU")
    found = torch.cuda.get_device_properties(device)  # a block keeps up to 64 rows of the residual stream
    if (found.major, found.minor) != (9, 0) or found.multi_processor_count < HIDDEN // ROWS // 4:
        raise ValueError(f"one kernel: {found.name}, expected compute capability 9.0 and 64 multiprocessors or more")


class OneKernelGenerator(Generator):
    """A Generator whose step is one kernel. The model's own weights stay: prompts need them."""

    def __init__(
        self, model: Llama, batch: int, capacity: int, choose: Callable = greedy, has_barriers: bool = False
    ) -> None:
        """has_barriers: all blocks wait for each other after each part of a step, for the ladder."""
        check(model, batch)
        self.has_barriers, device = has_barriers, model.embedding.device
        products = zip(*((x.qkv[0], x.o, x.gate_up[0], x.down) for x in model.layers), strict=True)
        self.weights = [torch.stack([units(layer) for layer in layers]) for layers in products]
        self.weights.append(units(model.last))
        norms = [x.weight for each in model.layers for x in (each.norm, each.norm_2)]
        self.norms = torch.stack([*norms, model.norm.weight])
        self.logits = model.embedding.new_empty(batch, model.config.vocab_size)
        blocks = torch.cuda.get_device_properties(device).multi_processor_count
        q_rows, key_heads = self.weights[0].shape[1] * ROWS, model.config.num_key_value_heads
        parts = key_heads * 16 * (GROUP * HEAD + 2 * GROUP)  # up to 16 blocks share a key head
        count = 3 * HIDDEN // 2 + q_rows // 2 + parts + INNER // 2 + 2 * blocks
        self.words = torch.zeros(batch * count, dtype=torch.int64, device=device)  # what blocks send each other
        self.state = torch.tensor([1, 0], dtype=torch.int32, device=device)
        super().__init__(model, batch, capacity, choose=choose)

    @torch.no_grad()
    def step(self) -> None:
        cache, config = self.cache, self.model.config
        tensors = [*self.weights, self.model.embedding, self.norms, *cache.tensors, *cache.angles]
        tensors += [self.tokens, cache.counts, self.logits, self.words, self.state]
        sizes = [len(self.words), config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads]
        sizes += [config.vocab_size, self.capacity, ctypes.c_float(config.rms_norm_eps)]
        operators.launch(launcher(len(self.tokens)), *tensors, *sizes, int(not self.has_barriers))
        if self.choose is not greedy:  # the kernel has chosen the most probable token
            self.tokens.copy_(self.choose(self.logits))
