"""examples/: each is built as its README says, in a copy of the project, and run."""

import json
import os
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from lab import kernels
from lab.build import toolchain

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.thorough
def test_cpp(project, tmp_path):
    """The commands of examples/cpp/README.md, word for word: an installed package, and a program without Python."""
    page = (project / "examples" / "cpp" / "README.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1]
    env = os.environ | {"PATH": toolchain.tool_path(), "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    if torch.version.cuda:  # find_package(Torch) wants a toolkit with libnvrtc, and no wrapper of nvcc
        root = toolchain.cuda_root(toolchain.find_nvcc())
        env |= {"CUDA_HOME": str(root), "PATH": f"{root}/bin:{env['PATH']}"}
        for nvrtc in Path(torch.__file__).parents[1].glob("nvidia/*/lib/libnvrtc.so.??"):
            commands = commands.replace("-DMODEL", f'-DCUDA_nvrtc_LIBRARY="{nvrtc}" -DMODEL')
    shell = ["bash", "-e", "-c", commands]
    done = subprocess.run(shell, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a compiled model with add2:  the same as torch" in done.stdout
    assert done.stdout.count("the same as torch") >= 3
    assert ("add2 on the GPU:" in done.stdout) == torch.cuda.is_available()
    linked = subprocess.check_output(["ldd", project / "build/example/example"], text=True)
    assert "libadd2.so" in linked
    assert "libpython" not in linked


@pytest.mark.parametrize("threads", [0, -1, 2**32 + 256])
def test_careful_number_of_threads(threads, lesson, device):
    """A division by zero would end Python; a launch would take the lower 32 bits, and leave elements out."""
    a = torch.ones(1000, device=device)
    with pytest.raises(RuntimeError, match="threads must be a positive int"):
        lesson("mistakes").careful(a, a, threads)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_ways(run, project, tmp_path):
    """Each way that can run here gives torch's result, each layer its gradient, too; otherwise ways.py fails."""
    on_gpu = torch.cuda.is_available()
    some = ("torch.add", "torch.compile", "jit")
    words = [] if on_gpu else [word for way in some for word in ("--way", way)]
    files = [tmp_path / "ways.json", tmp_path / "layers.json"]
    for file, asked in zip(files, (words, ["--host-cost"]), strict=True):
        run("examples/ways/ways.py", *asked, "--json", file, root=project, ADD2_WITH_CUDA=str(int(on_gpu)))
    ways, layers = (json.loads(file.read_text()) for file in files)
    assert on_gpu or {row["way"] for row in ways["ways"]} == {*some}
    has_gradient = {row["call"]: "grad_us" in row for row in layers["host_cost"]}
    assert has_gradient["custom_op"]
    assert [name for name, has in has_gradient.items() if not has] == [
        "C++ function, called from C++",
        "stable operator",
        "define, impl",
    ]


@pytest.fixture
def a_way(lesson, monkeypatch):
    """Import one file of examples/ways by its name; it may build, by torch's own load()."""
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", torch.version.cuda and toolchain.environment().get("CUDA_HOME"))
    monkeypatch.syspath_prepend(ROOT / "examples" / "ways")
    return partial(pytest.importorskip, exc_type=ImportError)


@pytest.mark.parametrize("name", ["triton_add", "nvrtc_add", "tvm_add", "cute_add"])
def test_ways_in_python(name, cuda, a_way):
    """The operators of one file: values, gradient, contract, torch.compile, the current stream."""
    add = a_way(name).add
    for n in (1, 1000, 1003, 100_001):
        a, b = (torch.randn(n, device=cuda) for _ in range(2))  # each at a multiple of 16 bytes
        assert torch.equal(add(a, b), a + b)
    a.requires_grad_()
    torch.library.opcheck(add, (a, b))
    assert torch.equal(torch.compile(add, fullgraph=True)(a, b), a + b)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        doubled = 2 * b
        assert torch.equal(add(doubled, b), 3 * b)


def test_tvm_ffi_builds(nvcc, a_way, monkeypatch, tmp_path):
    """Without a GPU: the launcher builds, loads, takes torch's tensors, and refuses those of a CPU."""
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "9.0")
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path))
    way = a_way("tvm_add")
    with pytest.raises(ValueError, match="expected c, a and b contiguous, float32, of one size and GPU"):
        way.plain(torch.ones(3), torch.ones(3))


def test_cute_is_compiled_ahead(nvcc, run, project):
    """Without a GPU: an object file; then an operator whose library needs neither the DSL nor a CUDA runtime."""
    pytest.importorskip("cutlass.cute", exc_type=ImportError)
    run(project / "examples/ways/cute_kernel.py", "sm_90")
    use = "import sys; sys.modules['cutlass'] = None; import cute_add, torch; x = torch.ones(5, device='meta')"
    env = toolchain.environment() | {"PYTHONPATH": str(project / "examples/ways")}
    run("-c", f"{use}; assert cute_add.add(x, x).shape == (5,)", cwd=project, **env)
    library = Path(env["TORCH_EXTENSIONS_DIR"], "ways_cute", "ways_cute.so")
    needed = subprocess.check_output(["readelf", "--dynamic", library], text=True)
    assert re.findall(r"NEEDED.*\[lib(torch_cuda|cudart|cute|cuda)\b", needed) == ["torch_cuda"]


def test_nvrtc_compiles(a_way):
    """Without a GPU, for each architecture that this NVRTC knows: the kernel is there under its name."""
    a_way("cuda.core")
    nvrtc_add, nvrtc = a_way("nvrtc_add"), a_way("cuda.bindings.nvrtc")
    for number in nvrtc.nvrtcGetSupportedArchs()[1]:
        if number >= 75:
            code = nvrtc_add.compile(f"sm_{number}")
            [lowered] = code.symbol_mapping.values()
            assert b".text." + lowered in code.code


@pytest.mark.thorough
@pytest.mark.anywhere
def test_articles(run, tmp_path):
    """The way of 2021 still works, and gradcheck says what the page says."""
    told = run("examples/articles/articles.py", TORCH_EXTENSIONS_DIR=str(tmp_path)).stdout
    assert "the same values as torch.sigmoid" in told
    assert re.findall("gradcheck in (.*)", told) == [
        "float32 with eps 0.001: passes",
        "float32 with eps 0.0001: fails",
        "float64 with eps 0.001: passes",
        "float64 with eps 0.0001: passes",
    ]
    assert ("torch_launch_add2: the same sums" in told) == torch.cuda.is_available()


@pytest.mark.parametrize("name", ["row_sum", "softmax"])
def test_reduction(name, nvcc, lesson, tmp_path):
    """nvcc compiles it; on a GPU the program's own check passes. (In the emulator: test_lesson_programs.py.)"""
    program, source = lesson("reduction"), ROOT / "examples" / "reduction" / f"{name}.cu"
    if torch.cuda.is_available():
        program.check(name, kernels.load(source))
    else:
        kernels.compile_source(source, tmp_path / "kernels.so")


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16])
def test_transpose(dtype, cuda, nvcc, lesson):
    """Every rung at random sizes, NaN's bits included, and nothing is written outside of y."""
    program = lesson("transpose")
    launchers = kernels.load(ROOT / "examples" / "transpose" / "transpose.cu")
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    for height, width in torch.randint(0, 300, (20, 2)).tolist():
        x = torch.randint(-(2**15), 2**15, (height, width), dtype=bits, device="cuda")
        for rung in program.RUNGS:
            around = torch.full((x.numel() + 2000,), 7, dtype=bits, device="cuda")
            start = 1000 + height % 2  # halves that do not begin at a word
            y = around[start : start + x.numel()].view(width, height)
            program.transpose(launchers, rung, x.view(dtype), y.view(dtype))
            assert torch.equal(y, x.t())
            assert (torch.cat((around[:start], around[start + x.numel() :])) == 7).all()


@pytest.mark.thorough
def test_findcuda(nvcc, project, run, tmp_path):
    """The .cu on its way through FindCUDA, as docs/articles.md tells it; the library adds."""
    told = run(project / "examples/articles/follow.py", cwd=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path)).stdout
    steps = ["run_nvcc.cmake", r"nvcc -M [^\n]*add2_kernel.cu", r"nvcc [^\n]*add2_kernel.cu[^\n]* -c -o BUILD/"]
    steps += [r"\+\+ [^\n]*-shared [^\n]*add2_generated_add2_kernel.cu.o", r"nvcc [^\n]*-x cu -c "]
    assert re.search(".*".join(steps), told, re.DOTALL), told
    library = tmp_path / "build" / "findcuda" / "libadd2.so"
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/operator/test_values.py", "--library", library)
    run("time.py", "--sizes", "100", "--library", library)
