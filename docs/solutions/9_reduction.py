"""Solutions of docs/9_reduction.md."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from workshop import ROOT, edit, main, need_gpus, need_nvcc, run

from lab import toolchain

SOURCE = ROOT / "examples" / "reduction" / "row_sum.cu"


def compile_kernel(source: Path) -> ctypes.CDLL:
    """The launcher as a C function: no torch in it, so nvcc is all it takes."""
    library = source.with_suffix(".so")
    arch = "native" if torch.cuda.is_available() else "sm_90"
    command = [toolchain.find_nvcc(), "-O3", "-std=c++17", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([*command, "-cudart", "static", source, "-o", library], check=True)
    print("   compiled")
    return ctypes.CDLL(str(library))


def launch(library: ctypes.CDLL, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    sizes = [ctypes.c_int64(size) for size in x.shape]
    library.launch_row_sum.restype = ctypes.c_char_p
    error = library.launch_row_sum(ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr()), *sizes, stream)
    assert error is None, error
    return out


def exercise_1():
    """A maximum: another operation, and another identity."""
    need_nvcc()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "row_max.cu")
        source.write_text(SOURCE.read_text())
        edit(source, "x += __shfl_xor_sync(0xffffffff, x, distance)", "x = fmaxf(x, __shfl_xor_sync(~0u, x, distance))")
        edit(source, "total += shared[warp];", "total = fmaxf(total, shared[warp]);")
        edit(source, "sum += row[i];", "sum = fmaxf(sum, row[i]);")
        edit(source, "float total = 0;", "float total = -INFINITY;")
        edit(source, "float sum = 0;", "float sum = -INFINITY;")
        library = compile_kernel(source)
        if torch.cuda.is_available():
            x = torch.randn(100, 4001, device="cuda") - 10
            assert torch.equal(launch(library, x), x.amax(1))
            print("   the same as torch's maximum")


def exercise_2():
    """A race: the barrier is missing."""
    need_nvcc()
    need_gpus()
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "race.cu"), Path(folder, "race")
        source.write_text(SOURCE.read_text())
        edit(source, "  __syncthreads();\n", "")
        with source.open("a") as file:
            launch = "launch_row_sum(x, x + 1000, 100, 1000, 0)"
            file.write(f"int main() {{ float *x; cudaMalloc(&x, 1 << 20); {launch}; cudaDeviceSynchronize(); }}\n")
        subprocess.run([toolchain.find_nvcc(), "-arch=native", source, "-o", program], check=True)
        said = run("compute-sanitizer", "--tool", "racecheck", program, status=None)
        assert "hazard" in said, said
        print("   racecheck found the race")


def exercise_3():
    """1000 ones in bfloat16 are 256."""
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        total = torch.zeros((), dtype=dtype)
        for _ in range(1000):
            total += 1
        found[dtype] = total.item()
        print(f"   {dtype}: {total.item():g}")
    assert found == {torch.bfloat16: 256, torch.float32: 1000}


main()
