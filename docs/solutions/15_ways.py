"""Solutions of docs/15_ways.md."""

import os

import torch
from workshop import Missing, main


def need_cuda_core():
    os.environ["ADD2_NVRTC"] = "1"  # so that `import add2` registers the operator in Python
    try:
        from add2 import nvrtc
    except ImportError:
        raise Missing("the package cuda-core, and a torch with CUDA") from None
    return nvrtc


def exercise_1():
    """NVRTC names the file and the line."""
    nvrtc = need_cuda_core()
    source = nvrtc.SOURCE.read_text()
    line = source[: source.index("return a + b;")].count("\n") + 1
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(name="kernel/add2_kernel.cuh", include_path=nvrtc.headers(), arch="sm_90")
    try:
        Program(source.replace("return a + b;", "return a + d;", 1), "c++", options).compile("cubin")
    except Exception as error:
        message = next(line for line in str(error).splitlines() if "error:" in line)
    print("  ", message)
    assert message == f'kernel/add2_kernel.cuh({line}): error: identifier "d" is undefined'


def exercise_2():
    """The architectures of this NVRTC, and the size of the code for two of them."""
    nvrtc = need_cuda_core()
    from cuda.bindings import nvrtc as bindings

    known = bindings.nvrtcGetSupportedArchs()[1]
    sizes = {f"sm_{n}": len(nvrtc.compile(f"sm_{n}", torch.float32).code) for n in (known[0], known[-1])}
    print("  ", known, "bytes:", sizes)
    assert len(set(sizes.values())) == 2


def exercise_3():
    """An operator that Python registers is like any other."""
    need_cuda_core()
    import add2

    a, b = torch.randn(5, requires_grad=True), torch.randn(5)
    c = add2.add2(a, b)
    assert torch.equal(c, a + b)
    c.sum().backward()
    print("   the gradient:", a.grad.tolist())
    assert a.grad.tolist() == [1.0] * 5


main()
