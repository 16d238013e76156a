"""examples/common: launch.cuh, on a CUDA runtime of two devices that stands below; the GPUs that operators.py compiles
for; a library of operator.h with a torch without CUDA."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch

from lab import toolchain

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# Of the runtime, what launch.cuh uses. Device 0 is an H100, device 1 an A100. Kernels declare 1 KB of shared memory.
RUNTIME = """
#pragma once
#include <stddef.h>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed };
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension, cudaLaunchAttributeProgrammaticStreamSerialization };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct cudaFuncAttributes { size_t sharedSizeBytes; int ptxVersion; };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct { int programmaticStreamSerializationAllowed; struct { unsigned x, y, z; } clusterDim; } val;
};
typedef struct CUstream_st* cudaStream_t;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

static thread_local int current = 0;
static std::mutex driver;
static std::map<std::pair<int, const void*>, int> limits;  // of dynamic shared memory, as set
static int settings = 0, cleared = 0, out_of_memory = 0;
inline int shared_memory() { return (current == 0 ? 227 : 163) * 1024; }
inline cudaError_t cudaGetDevice(int* device) { return *device = current, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = shared_memory(), cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  if (out_of_memory-- > 0) return cudaErrorMemoryAllocation;
  return *found = {1024, current == 0 ? 90 : 80}, cudaSuccess;
}
template <typename... T>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, void (*kernel)(T...)) {
  return cudaFuncGetAttributes(found, (const void*)kernel);
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value) {
  const std::lock_guard<std::mutex> lock(driver);
  if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > shared_memory() - 1024) return cudaErrorInvalidValue;
  ++settings;
  limits[{current, kernel}] = value;
  return cudaSuccess;
}
template <typename... T>
cudaError_t cudaFuncSetAttribute(void (*kernel)(T...), cudaFuncAttribute which, int value) {
  return cudaFuncSetAttribute((const void*)kernel, which, value);
}
template <typename... T, typename... U>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* how, void (*kernel)(T...), U...) {
  std::this_thread::yield();
  const std::lock_guard<std::mutex> lock(driver);
  const auto found = limits.find({current, (const void*)kernel});
  const int limit = found == limits.end() ? 48 * 1024 : found->second;
  return static_cast<int>(how->dynamicSmemBytes) > limit ? cudaErrorInvalidValue : cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return ++cleared, cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid argument";
}
"""
CALLS = """
#include "common/launch.cuh"
#include <atomic>
#include <vector>
template <int> void kernel(int, float) {}
const char* launch_with(int kilobytes) {
  return launch(kernel<0>, {1, 32, static_cast<size_t>(kilobytes) << 10}, nullptr, 1, 2);
}
extern "C" {
void set_device(int device) { current = device; }
void run_out_of_memory() { out_of_memory = 1; }
int count_settings() { return settings; }
int count_cleared() { return cleared; }
bool is_hopper(int which) { return which ? has_hopper_code(kernel<1>) : has_hopper_code(kernel<0>); }
const char* launch_kb(int kilobytes) { return launch_with(kilobytes); }
int failures(int count, int calls) {
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([=, &failed] {
      current = i % 4 / 2;
      for (int j = 0; j < calls; ++j) failed += launch_with(i % 2 ? 160 : 100) != nullptr;
    });
  for (std::thread& thread : threads) thread.join();
  return failed;
}
}
"""


@pytest.fixture
def calls(tmp_path):
    (tmp_path / "cuda_runtime.h").write_text(RUNTIME)
    (tmp_path / "calls.cpp").write_text(CALLS)
    command = [toolchain.host_compiler(), "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-pthread", f"-I{tmp_path}", f"-I{EXAMPLES}", tmp_path / "calls.cpp", "-o", tmp_path / "calls.so"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "calls.so"))
    library.launch_kb.restype, library.is_hopper.restype = ctypes.c_char_p, ctypes.c_bool
    return library


def test_launches_of_several_threads(calls):
    """Two sizes of shared memory on two devices: no thread lowers the limit that another one needs."""
    assert calls.failures(8, 5000) == 0
    assert calls.count_settings() == 2  # once for each device


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_device_is_asked(calls, order):
    """An H100 and an A100 in one host, whichever comes first."""
    for device in order * 2:
        calls.set_device(device)
        assert [calls.is_hopper(which) for which in (0, 1)] == [device == 0] * 2
        assert calls.launch_kb(160) is None
        assert (calls.launch_kb(200) is None) == (device == 0)


def test_errors_of_a_launch(calls):
    """One that asks for too much says so; what fails for another reason is reported, cleared, and tried again."""
    assert b"more shared memory per block than this GPU has" in calls.launch_kb(227)
    calls.set_device(1)
    calls.run_out_of_memory()
    before = calls.count_cleared()
    assert calls.launch_kb(100) == b"out of memory"
    assert calls.count_cleared() > before
    assert calls.launch_kb(100) is None


def test_library_for_torch_without_cuda(tmp_path):
    """With CUDA code in it, it also loads where torch has none: the stream's function is a weak symbol."""
    (tmp_path / "op.cpp").write_text("""
        #include "common/operator.h"
        constexpr Operator self = {"op"};
        extern "C" void call(const Tensor& x) { self.on_gpu(x, [](CUstream_st*) { return "never"; }); }""")
    torch_folder = Path(torch.__file__).parent
    command = [toolchain.host_compiler(), "-std=c++17", "-shared", "-fPIC", "-DUSE_CUDA", f"-I{EXAMPLES}"]
    command += ["-DTORCH_TARGET_VERSION=0x020a000000000000", f"-isystem{torch_folder}/include", tmp_path / "op.cpp"]
    command += [f"-L{torch_folder}/lib", "-Wl,--no-as-needed", "-ltorch", "-o", tmp_path / "op.so"]
    subprocess.run(command, check=True)
    symbols = subprocess.run(["nm", "-D", tmp_path / "op.so"], capture_output=True, text=True, check=True).stdout
    assert " w aoti_torch_get_current_cuda_stream" in symbols
    ctypes.CDLL(str(tmp_path / "op.so"))


@pytest.mark.thorough
def test_lesson_with_nvcc_behind_a_script(nvcc, run, tmp_path):
    """nvcc on PATH is a script in a folder where no toolkit is, and no variable names the toolkit."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text(f'#!/bin/sh\nexec "{nvcc}" "$@"\n')
    (tmp_path / "bin/nvcc").chmod(0o755)
    source = tmp_path / "tiny.cu"
    source.write_text('__global__ void kernel() {}\nextern "C" void launch_tiny() { kernel<<<1, 1>>>(); }\n')
    code = "import sys; from pathlib import Path; from common import operators; "
    code += "print(operators.load('tiny', [Path(sys.argv[1])], ['-arch=sm_90']))"
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    found = run("-c", code, source, drop=("CUDA_HOME", "CUDA_PATH"), PYTHONPATH=str(EXAMPLES), **env).stdout
    assert b"launch_tiny" in Path(found.splitlines()[-1]).read_bytes()


@pytest.mark.parametrize(
    ("gpus", "targets"),
    [
        ([(9, 0), (8, 0), (9, 0)], ["sm_80", "sm_90a"]),
        ([(8, 0), (9, 0)], ["sm_80", "sm_90a"]),
        ([(7, 5), (9, 0), (12, 0)], ["sm_90a", "sm_120"]),  # the operator does not run on the first
        ([(9, 0)], ["sm_90a"]),
        ([(8, 0), (8, 9)], []),  # torch's own flags name all that are visible
        ([], ["compute_80"]),
    ],
    ids=str,
)
def test_gpus_to_compile_for(lesson, monkeypatch, gpus, targets):
    """All that are visible, whichever is the current one."""
    operators = lesson("common", "operators")
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=0: gpus[device])
    found = operators.target_flags(oldest=80, hopper=True)
    assert found == [f"-gencode=arch={each.replace('sm', 'compute')},code={each}" for each in targets]
