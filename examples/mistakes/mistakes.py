"""Break c = a + b on purpose: each function makes one mistake and shows its symptom and the line that prevents it.

    python3 examples/mistakes/mistakes.py           # all that this machine can show
    python3 examples/mistakes/mistakes.py short     # one of them

docs/2_mistakes.md explains them.
"""

import ctypes
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from lab import toolchain  # noqa: E402  (it finds nvcc)

with toolchain.torch_load("mistakes") as (_, nvcc, link):
    GPU = torch.cuda.is_available() and nvcc is not None
    flags = {"with_cuda": GPU, "extra_ldflags": link}
    flags["extra_cuda_cflags"] = ["-DUSE_CUDA"]  # torch's headers then declare what is for CUDA
    flags |= {} if GPU else {"extra_cflags": ["-x", "c++"]}  # g++ has to be told that a .cu file is C++
    load("mistakes", [str(HERE / "mistakes.cu")], is_python_module=False, **flags)
careless, careful = torch.ops.mistakes.careless, torch.ops.mistakes.careful


@torch.library.register_fake("mistakes::careful")  # prevents: compiled
def _(a, b, threads=256):
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def backward(ctx, grad):
    return grad, grad, None  # threads has no gradient


torch.library.register_autograd("mistakes::careful", backward)  # prevents: gradient
for mirror in ("careless_mirror", "careful_mirror"):
    torch.library.register_fake(f"mistakes::{mirror}", lambda c, a: None)


def attempt(call, *arguments):
    """The result as text, or the error's first line."""
    try:
        result = call(*arguments)
        return str(result.tolist() if isinstance(result, torch.Tensor) else result)
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0].replace(f'{HERE}/', '')}"


def values(**tensors):
    return ", ".join(f"{name} = {x.tolist()}" for name, x in tensors.items())


def three(inputs, call):
    return {
        "inputs": inputs,
        "careless": attempt(call, careless),
        "expected": attempt(call, torch.add),
        "careful": attempt(call, careful),
    }


def transposed():
    """the elements of b lie in memory in another order than a's"""
    a, b = torch.zeros(2, 3), torch.tensor([[1.0, 2], [3, 4], [5, 6]]).t()
    return three(f"{values(a=a, b=b)}; b's memory: {b.t().flatten().tolist()}", lambda add: add(a, b))


def short():
    """b has fewer elements than a, so the loop reads past the end of b"""
    memory = torch.tensor([1.0, 2, 3, 98, 99])  # b is a view of it, so the two elements after b are ours, too
    a, b = torch.zeros(5), memory[:3]
    return three(f"{values(a=a, b=b)}; then in memory: {memory[3:].tolist()}", lambda add: add(a, b))


def dtype():
    """b holds float64, and the loop reads its bytes as float32"""
    a, b = torch.zeros(4), torch.tensor([1, 2, 3, 4], dtype=torch.float64)
    return three(f"{values(a=a, b=b)} in {b.dtype}", lambda add: add(a, b))


def length():
    """the length is an int, and a has 2^31 + 4 elements"""
    n = torch.empty(2**31 + 4, device="meta").numel()  # a tensor without memory
    return {"careless": f"n = {ctypes.c_int(n).value}", "expected": f"n = {n}"}


def gradient():
    """the operator has no backward"""

    def gradient_of(add):
        a = torch.ones(2, requires_grad=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            add(a, torch.ones(2)).sum().backward()
        return " ".join([f"a.grad = {a.grad}", *(f"({str(w.message).split('. ')[0]})" for w in caught)])

    return three("a = [1.0, 1.0], which requires a gradient, b = [1.0, 1.0]; add(a, b).sum().backward()", gradient_of)


def compiled():
    """without a fake kernel, the compiler cannot ask for the shape of the result"""
    a, options = torch.ones(2), {"backend": "eager", "fullgraph": True}  # eager: trace, but generate no code
    call = f"{values(a=a, b=a)}; torch.compile of add(a, b) + 1"
    return three(call, lambda add: torch.compile(lambda a, b: add(a, b) + 1, **options)(a, a))


def overlap():
    """c is a clone of a, and torch.compile leaves the clone out, so the loop reads what it has written"""

    def mirror(write, a):
        x = 2 * a
        c = x.clone()
        write(c, x)
        return c

    a, operators = torch.arange(1.0, 5), torch.ops.mistakes
    return {
        "inputs": f"{values(a=a)}; torch.compile of x = 2 * a; c = x.clone(); mirror(c, x), c[i] = x[i] + x[3-i]",
        "careless": attempt(torch.compile(mirror), operators.careless_mirror, a),
        "expected": attempt(mirror, operators.careless_mirror, a),
        "careful": attempt(torch.compile(mirror), operators.careful_mirror, a),
    }


def stream():
    """the kernel is queued on the default stream; its input is written on another one"""
    a, b, big = torch.zeros(2, device="cuda"), torch.zeros(2, device="cuda"), torch.ones(8192, 8192, device="cuda")
    own = torch.cuda.Stream()

    def add_late(add):
        for _ in range(2):  # the first round allocates and loads, which may wait for the GPU
            a.zero_()
            torch.cuda.synchronize()
            with torch.cuda.stream(own):
                big @ big  # keeps the stream busy for milliseconds
                a.fill_(1)
                c = add(a, b)
            torch.cuda.synchronize()
        return c

    return three("a = [0.0, 0.0], then filled with 1.0 on another stream; b = [0.0, 0.0]", add_late)


def launch():
    """2048 threads per block are too many, so the kernel never runs"""
    a = torch.ones(2, device="cuda")
    old = [torch.full((2,), 7.0, device="cuda") for _ in range(100)]
    del old  # c gets memory that was freed before
    c = careless(a, a, 2048)
    rows = {"inputs": "a = [1.0, 1.0]; add(a, a), whose result gets memory that holds [7.0, 7.0]"}
    rows |= {"careless": attempt(lambda: c), "next line": attempt(lambda: a * 1), "expected": attempt(lambda: a + a)}
    return rows | {"careful": attempt(careful, a, a, 2048)}


def in_a_child(inputs):
    """An illegal memory access ends the CUDA context, so each call gets a process of its own."""

    def last_line(add):
        code = f"from mistakes import *; {inputs}; c = {add}(a, b); print(attempt(lambda: c), end=' ', flush=True)\n"
        code += "print('Then:', attempt(lambda: torch.ones(2, device='cuda')))"
        done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
        return (done.stdout.strip() or done.stderr.strip()).splitlines()[-1].replace(f"{HERE}/", "")

    calls = {"careless": "careless", "expected": "torch.add", "careful": "careful"}
    return {"inputs": inputs} | {label: last_line(add) for label, add in calls.items()}


def cpu():
    """a is on the GPU, and b on the CPU"""
    return in_a_child("a, b = torch.ones(2, device='cuda'), torch.ones(2)")


def gpu():
    """a and b are on cuda:1, and cuda:0 is the current device"""
    return in_a_child("a = b = torch.ones(2, device='cuda:1')")


MISTAKES = {
    f.__name__: f for f in (transposed, short, dtype, length, gradient, compiled, overlap, stream, launch, cpu, gpu)
}
NEEDS = {"stream": 1, "launch": 1, "cpu": 1, "gpu": 2}  # GPUs


def prevented_by(name):
    for path in (HERE / "mistakes.cu", Path(__file__)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.endswith(f"prevents: {name}"):
                yield f"{path.name}:{number}", line.split(" //")[0].split("  #")[0].strip()


def main():
    if unknown := set(sys.argv[1:]) - set(MISTAKES):
        sys.exit(f"mistakes.py: {', '.join(unknown)}: unknown. Choose from {', '.join(MISTAKES)}.")
    for name in sys.argv[1:] or MISTAKES:
        print(f"{name}: {MISTAKES[name].__doc__}")
        if NEEDS.get(name, 0) > GPU * torch.cuda.device_count():
            print(f"  not shown here: needs nvcc and {NEEDS[name]} GPU{'s' * (NEEDS[name] > 1)}\n")
            continue
        for label, value in MISTAKES[name]().items():
            print(f"  {label:9} {value}")
        for place, line in prevented_by(name):
            print(f"  prevented by {place}: {line}")
        print(flush=True)


if __name__ == "__main__":
    main()
