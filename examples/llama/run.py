"""Write text with a Llama: a small random one, which is checked first, or one from a folder of transformers.

    python3 examples/llama/run.py
    python3 examples/llama/run.py --checkpoint FOLDER --prompt "The largest planet is"
    python3 examples/llama/run.py --size 8b --weights int4 --last int4 --profile

docs/18_llama.md explains it. Without a GPU, or with --weights float32, it computes on the CPU.
"""

import argparse
import re
import sys
import time
from pathlib import Path

import torch
from generate import Generator, check_logits, greedy, sampler
from llama import Cache, Config, Llama, add_rms_norm, build, operators
from load import Checkpoint, Loader
from model_config import read_config
from one_kernel import KERNELS, OneKernelGenerator
from plain import TorchCache, set_norm
from steps import kernels, ladder

from lab import cli, files, lesson  # of the workbench, only options and files

SIZES = {
    "small": Config(256, 768, 4, 4, 2, 64, 1024),
    "8b": Config(4096, 14336, 32, 32, 8, 128, 128256, 131072, 1e-5, 500000.0),
}


def options() -> argparse.Namespace:
    parser = lesson.options(__doc__)
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="config.json, *.safetensors, tokenizer.json")
    parser.add_argument("--prompt", help="text to go on with")
    parser.add_argument("--size", choices=SIZES, default="small", help="of a random model (default: small)")
    parser.add_argument(
        "--weights", choices=["float32", "bf16", "int4"], help="float32: CPU only; default on a GPU: bf16"
    )
    parser.add_argument("--last", choices=["bf16", "int4"], default="bf16", help="the last layer, with --weights int4")
    parser.add_argument("--cache", choices=["bf16", "int8"], default="bf16", help="keys and values")
    parser.add_argument("--tokens", type=int, default=128, help="to write (default: 128)")
    parser.add_argument("--context", type=int, default=16, help="tokens of a random prompt (default: 16)")
    parser.add_argument("--batch", type=int, default=1, help="texts at once, the first one is shown (default: 1)")
    parser.add_argument("--temperature", type=float, default=0, help="0, the default: the most probable token")
    parser.add_argument("--seed", type=int, default=0, help="of random prompts and choices")
    parser.add_argument(
        "--one-kernel", action="store_true", help="a step is one kernel: 8B, 4 bits, one text or two, H100 or H200"
    )
    parser.add_argument("--profile", action="store_true", help="also the kernels of a step of this model")
    parser.add_argument("--steps", action="store_true", help="the ladder of the page, for --size and --context")
    args = parser.parse_args()
    given = {name for name, value in vars(args).items() if value != parser.get_default(name)}
    ignored = {"checkpoint": {"size", "context"}, "steps": given - {"steps", "size", "context", "json"}}
    for option, others in ignored.items():
        if option in given and given & others:
            parser.error(f"--{option} cannot be combined with --{min(given & others).replace('_', '-')}")
    if (args.checkpoint is None) != (args.prompt is None) or args.prompt == "":
        parser.error("--checkpoint and --prompt, which must not be empty, belong together")
    if args.last == "int4" and args.weights != "int4":
        parser.error("--last int4 needs --weights int4")
    if args.one_kernel and (args.last != "int4" or args.batch > 2 or args.cache != "bf16"):
        parser.error("--one-kernel needs --weights int4 --last int4, one text or two and a cache in bf16")
    if not 0.001 <= args.temperature <= 1000 and args.temperature != 0:
        parser.error(f"--temperature is {args.temperature}, expected 0, or 0.001 to 1000")
    if min(args.tokens, args.batch, args.context) < 1 or not 0 <= args.seed < 2**64:
        parser.error("--tokens, --batch, --context: at least 1; --seed: 0 to 2^64 - 1")
    return args


@torch.no_grad()
def check(device: torch.device) -> None:
    """The logits of two prompts, and of tokens after them, against torch's own functions."""
    config, dtype, found = SIZES["small"], torch.float32 if device.type == "cpu" else torch.bfloat16, []
    for kind, norm, is_apart in ((TorchCache, add_rms_norm.reference, True), (Cache, add_rms_norm.add_rms_norm, False)):
        model = set_norm(Llama(config, Loader(device, dtype, is_apart=is_apart)), norm)
        cache, lengths = kind(config, 2, 64, dtype, device), [40, 7]
        logits = [model(torch.arange(n, device=device), cache, row, is_every=True) for row, n in enumerate(lengths)]
        for i in range(5):
            cache.set_lengths([n + i for n in lengths])
            logits.append(model(torch.tensor([i, i + 9], device=device), cache))
        found.append(torch.cat(logits).float())
    error = ((found[1] - found[0]).norm() / found[0].norm()).item()
    assert error < (1e-5 if dtype == torch.float32 else 0.01), error
    print(f"{device.type}: the logits are those of torch's functions, off by {error:.1e} of their norm")


def write(args: argparse.Namespace, device: torch.device) -> dict:
    """Shows the first text as it comes; returns times."""
    start = time.perf_counter()
    dtype, is_int4 = torch.float32 if args.weights == "float32" else torch.bfloat16, args.weights == "int4"
    torch.manual_seed(args.seed)
    if args.checkpoint:
        from tokenizers import Tokenizer

        config, read = read_config(args.checkpoint), Checkpoint(args.checkpoint)
        try:
            tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
        except Exception as error:  # it has no class of its own
            raise ValueError(f"{args.checkpoint / 'tokenizer.json'}: {error}: copy it again") from None
        tokenizer.no_truncation()  # the file may have what training needed
        tokenizer.no_padding()
        prompts = [tokenizer.encode(args.prompt).ids] * args.batch
    else:
        config, read, tokenizer = SIZES[args.size], None, None
        prompts = torch.randint(config.vocab_size, (args.batch, args.context)).tolist()
    capacity = max(len(prompts[0]) + args.tokens - 1 + args.profile, 1)  # only a profiled step reads the last token
    config.check_length(capacity)
    model = Llama(config, Loader(device, dtype, is_int4, is_int4 and args.last == "int4", read=read))
    if read:
        read.check_unread()
    choose = sampler(args.temperature) if args.temperature else greedy
    if args.one_kernel:
        generator = OneKernelGenerator(model, args.batch, capacity, choose)
    else:
        generator = Generator(model, args.batch, capacity, torch.int8 if args.cache == "int8" else dtype, choose)
    torch.manual_seed(args.seed)
    written, shown, times = [], "", [time.perf_counter()]
    try:
        for tokens in generator.generate(prompts, args.tokens):
            times.append(time.perf_counter())
            written.append(tokens[0])
            if tokenizer and tokens[0] in config.eos_token_id:
                break
            text = tokenizer.decode(written) if tokenizer else " ".join(map(str, written))
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the first bytes of a character
                print(text[len(shown) :], end="", flush=True)
                shown = text
    except KeyboardInterrupt:
        print(" (interrupted)", end="")
    print()
    row = {"weights": args.weights, "batch": args.batch, "prompt": len(prompts[0]), "start_s": times[0] - start}
    if len(written) > 1:
        check_logits(generator.logits)
        row["prompt_ms"] = (times[1] - times[0]) * 1e3
        row["tokens_per_s"] = args.batch * (len(written) - 1) / (times[-1] - times[1])
    if device.type == "cuda":
        row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        row["kernels"] = kernels(generator) if args.profile else []
    return row


def main() -> None:
    args = options()
    is_gpu = torch.cuda.is_available() and operators.has_toolkit() and args.weights != "float32"
    device = torch.device("cuda" if is_gpu else "cpu")
    args.weights = args.weights or ("bf16" if is_gpu else "float32")
    if (args.one_kernel or args.steps or args.profile) and not is_gpu:
        raise ValueError(
            "--one-kernel, --steps, --profile: they need a GPU that torch sees, and nvcc (ask `python3 -m lab.doctor`)"
        )
    build()
    if not args.checkpoint:
        check(device)
    results = []
    for row in ladder(SIZES[args.size], args.context) if args.steps else [write(args, device)]:
        results.append(row)
        found = {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row.items() if name != "kernels"}
        print("  ".join(f"{name} {x}" for name, x in found.items()))
        for kernel in row.get("kernels", []):
            print("{us:9.1f} us  {calls:4d} x  {part:16}{kernel}".format(**kernel))
    if args.json:
        files.write(args.json, files.to_json({"environment": cli.environment(device, [KERNELS]), "results": results}))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        found = re.search(r".*out of memory|can't allocate memory[^.]*", str(error))
        if not found:
            raise
        cure = "try --weights int4, --cache int8, a smaller --batch or --tokens"
        sys.exit(cli.fail(f"{found[0]}: {cure}"))
    except ImportError as error:
        sys.exit(cli.fail(f"{error}: python3 -m pip install safetensors tokenizers"))
    except (ValueError, OSError) as error:
        sys.exit(cli.fail(error))
    except KeyboardInterrupt:
        sys.exit(cli.fail("interrupted", 130))
