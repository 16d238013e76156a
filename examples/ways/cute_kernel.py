"""An addition in CuTe DSL, compiled ahead: an object file and its C header, for cute_add.cpp to link. Needs no GPU.

    python3 examples/ways/cute_kernel.py sm_90         # writes build/cute/

Needs the package nvidia-cutlass-dsl[cu13] (proprietary licence).
"""

import ctypes
import shutil
import sys
from pathlib import Path

from cuda.bindings.driver import CUstream
from cutlass import Float32, Int64, cute
from cutlass.cute.runtime import make_ptr
from cutlass.runtime import find_runtime_libraries

FOLDER = Path(__file__).resolve().parents[2] / "build" / "cute"
THREADS, ELEMENTS = 256, 4  # per block; per thread, 16 bytes


@cute.kernel
def kernel(c: cute.Pointer, a: cute.Pointer, b: cute.Pointer, n: Int64):
    i = Int64(cute.arch.block_idx()[0]) * THREADS + cute.arch.thread_idx()[0]
    vectors = n // ELEMENTS
    if i < vectors:
        layout = cute.make_layout((ELEMENTS, vectors), stride=(1, ELEMENTS))
        x, y = cute.make_tensor(a, layout), cute.make_tensor(b, layout)
        cute.make_tensor(c, layout)[None, i].store(x[None, i].load() + y[None, i].load())
    elif i < vectors + n % ELEMENTS:  # one thread for each element after the last whole vector
        layout = cute.make_layout(n)
        x, y = cute.make_tensor(a, layout), cute.make_tensor(b, layout)
        j = i + vectors * (ELEMENTS - 1)
        cute.make_tensor(c, layout)[j] = x[j] + y[j]


@cute.jit
def launch(c: cute.Pointer, a: cute.Pointer, b: cute.Pointer, n: Int64, stream: CUstream):
    blocks = n // ELEMENTS // THREADS + 1
    kernel(c, a, b, n).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


def compile(arch: str, folder: Path) -> None:
    """Write cute_add.o, cute_add.h, and the static library that they need."""
    runtime = Path(find_runtime_libraries(enable_tvm_ffi=False)[0])
    ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)  # without a GPU the compiler does not load it, and misses its symbols
    pointers = [make_ptr(Float32, 16, cute.AddressSpace.gmem, assumed_align=16) for _ in range(3)]  # 16: any address
    compiled = cute.compile(launch, *pointers, Int64(1), CUstream(0), options=f"--gpu-arch {arch}")
    folder.mkdir(parents=True, exist_ok=True)
    compiled.export_to_c(str(folder), "cute_add")
    shutil.copy(runtime.with_name("libcuda_dialect_runtime_static.a"), folder)


if __name__ == "__main__":
    compile(sys.argv[1], FOLDER)
