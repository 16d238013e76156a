// Runs CUDA kernels on a CPU, one fiber per thread of a block: it shows wrong indices, not races.
// Included before a .cu file, it stands in for nvcc, the runtime and the GPU. No kernel runs in it
// as a cluster: __CUDA_ARCH__ is not defined.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ static  // of a block, and blocks run one after the other

inline float __frsqrt_rn(float x) { return static_cast<float>(1 / std::sqrt(double(x))); }
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
template <typename T, typename U>
auto min(T a, U b) -> decltype(a + b) {
  return a < b ? a : b;
}
template <typename T, typename U>
auto max(T a, U b) -> decltype(a + b) {
  return a > b ? a : b;
}

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

using std::isinf;

namespace emulated {

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  dim3 thread;
  int warp = 0, waits_for = 0;  // waits_for: 0 nothing, 1 its warp, 2 its block
  bool is_done = false;
  double slot = 0;
};
inline std::vector<Fiber> fibers;
inline Fiber* now;
inline ucontext_t scheduler;
inline std::function<void()> body;
inline int multiprocessors = 132;

inline void wait(int for_whom) {
  now->waits_for = for_whom;
  swapcontext(&now->context, &scheduler);
}
inline void run_fiber() {
  body();
  now->is_done = true;
  swapcontext(&now->context, &scheduler);
}

// Lets each fiber run until it waits or ends, then frees the warps, or the block, that all wait.
inline void run_block() {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z;
  fibers.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    if (!fiber.stack) fiber.stack.reset(new char[32768]);
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, 32768};
    fiber.thread = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y);
    fiber.warp = i / 32, fiber.waits_for = 0, fiber.is_done = false;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (Fiber& fiber : fibers) {
      if (fiber.is_done || fiber.waits_for != 0) continue;
      is_done = false;
      now = &fiber, threadIdx = fiber.thread;
      swapcontext(&scheduler, &fiber.context);
    }
    if (!is_done) continue;
    bool all_wait = true, any_waits = false;
    for (unsigned first = 0; first < count; first += 32) {
      const unsigned end = std::min(first + 32, count);
      bool warp_waits = true;
      for (unsigned i = first; i < end; ++i) {
        if (fibers[i].is_done) continue;
        any_waits = true;
        if (fibers[i].waits_for != 1) warp_waits = false;
        if (fibers[i].waits_for != 2) all_wait = false;
      }
      if (warp_waits) {
        for (unsigned i = first; i < end; ++i) fibers[i].waits_for = 0;
      }
    }
    if (any_waits && all_wait) {
      for (Fiber& fiber : fibers) fiber.waits_for = 0;
    }
    for (Fiber& fiber : fibers) {
      if (!fiber.is_done && fiber.waits_for == 0) is_done = false;
    }
    if (is_done && any_waits) abort();  // a deadlock
  }
}

}  // namespace emulated

inline void __syncthreads() { emulated::wait(2); }
template <typename T>
T __shfl_xor_sync(unsigned, T x, int distance) {
  emulated::now->slot = x;
  emulated::wait(1);
  const T other =
      static_cast<T>(emulated::fibers[(emulated::now - emulated::fibers.data()) ^ distance].slot);
  emulated::wait(1);
  return other;
}

// The parts of the runtime that launchers use.
namespace emulated {
inline bool is_dry = false;  // note launches, but run nothing, on a GPU that has clusters
struct Launch {
  void* kernel;
  dim3 blocks, threads;
};
inline std::vector<Launch> launches;
inline cudaError_t last_error = cudaSuccess;
}  // namespace emulated

#define cudaGetDevice(device) (*(device) = 0, cudaSuccess)
#define cudaDeviceGetAttribute(value, ...) (*(value) = emulated::multiprocessors, cudaSuccess)
#define cudaFuncSetAttribute(...) cudaSuccess
#define cudaGetErrorString(error) "an error"
#define cudaGetLastError() std::exchange(emulated::last_error, cudaSuccess)
#define cudaFuncGetAttributes(to, ...) ((to)->ptxVersion = emulated::is_dry ? 90 : 75, cudaSuccess)
#define cudaOccupancyMaxActiveClusters(count, kernel, config) \
  (*(count) = emulated::multiprocessors / (config)->gridDim.y, cudaSuccess)

template <typename... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), P... x) {
  gridDim = config->gridDim, blockDim = config->blockDim;
  emulated::launches.push_back({reinterpret_cast<void*>(kernel), gridDim, blockDim});
  emulated::body = [&] { kernel(x...); };
  for (unsigned i = 0; i < gridDim.x * gridDim.y && !emulated::is_dry; ++i) {
    blockIdx = dim3(i % gridDim.x, i / gridDim.x);
    emulated::run_block();
  }
  return cudaSuccess;
}
