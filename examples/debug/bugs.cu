// Kernels with one bug each, for the tools of docs/12_debug.md. bugs.py compiles and starts them.
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>

#ifdef PRINT
#define print(...) printf(__VA_ARGS__)
#else
#define print(...)
#endif

// far, near: a store behind the end of x.
__global__ void store(float* x, int64_t n, int64_t i) {
  print("block %d, thread %d: x[%ld] of %ld\n", blockIdx.x, threadIdx.x, long(i), long(n));
  x[i] = 1;
}

// short, cpu, launch, empty: the kernel of docs/2_mistakes.md. It is right; its callers are not.
__global__ void add(float* c, const float* a, const float* b, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

// race: eight warps leave their sums in shared memory, and warp 0 reads them too early.
__global__ void sum(float* out, const float* x) {
  __shared__ float sums[8];
  float part = x[threadIdx.x];
  for (int distance = 16; distance > 0; distance /= 2)
    part += __shfl_xor_sync(0xffffffff, part, distance);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = part;
  // missing: __syncthreads();
  float total = 0;
  for (int warp = 0; warp < 8; ++warp) total += sums[warp];
  if (threadIdx.x == 0) *out = total;
}

// barrier: all threads of a block must reach a barrier, and half of each warp does not.
__global__ void half(float* out) {
  if (threadIdx.x % 32 < 16) __syncthreads();
  out[threadIdx.x] = 1;
}

// hang: waits for a flag that no thread sets.
__global__ void wait(const volatile float* flag) {
  while (*flag == 0) {
  }
}

const char* error_of_launch() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" {
const char* start_store(float* x, int64_t n, int64_t i, cudaStream_t stream) {
  store<<<1, 1, 0, stream>>>(x, n, i);
  return error_of_launch();
}

const char* start_add(float* c, const float* a, const float* b, int64_t n, int64_t threads,
                      cudaStream_t stream) {
  const int64_t blocks = (n + threads - 1) / threads;
  add<<<unsigned(blocks), unsigned(threads), 0, stream>>>(c, a, b, n);
  return error_of_launch();
}

const char* start_sum(float* out, const float* x, cudaStream_t stream) {
  sum<<<1, 256, 0, stream>>>(out, x);
  return error_of_launch();
}

const char* start_half(float* out, cudaStream_t stream) {
  half<<<1, 64, 0, stream>>>(out);
  return error_of_launch();
}

const char* start_wait(const float* flag, cudaStream_t stream) {
  wait<<<1, 32, 0, stream>>>(flag);
  return error_of_launch();
}
}
