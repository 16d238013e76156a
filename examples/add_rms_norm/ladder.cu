// The lesson in steps, in bfloat16. ladder.py times them. Each kernel here changes one thing of the
// one before it; the kernels in use, which follow them, change several.
#include "backward.cuh"
#include "forward.cuh"

namespace {

using T = __nv_bfloat16;

// 1. A thread per row, as on a CPU. A load of a warp touches 32 sectors, and uses 2 bytes of each.
__global__ void thread_per_row(T* y, T* s, float* rstd, const T* a, const T* b, const T* weight,
                               float eps, int64_t rows, int width) {
  const int64_t row = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (row >= rows) return;
  const int64_t start = row * width;
  float squares = 0;
  for (int i = 0; i < width; ++i) {
    round_to(s[start + i], to_float(a[start + i]) + to_float(b[start + i]));
    squares += to_float(s[start + i]) * to_float(s[start + i]);
  }
  rstd[row] = inverse_root(squares / width + eps);
  for (int i = 0; i < width; ++i) {
    round_to(y[start + i], to_float(s[start + i]) * rstd[row] * to_float(weight[i]));
  }
}

// The sum over a block by a tree in shared memory: half of the threads add, then a quarter, ...
__device__ float sum_by_tree(float x, float* shared) {
  shared[threadIdx.x] = x;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

// 2. A block per row: neighbouring threads read neighbouring elements, and a row has 512 threads.
// 3. With kShuffle the sum takes one barrier instead of ten.
template <bool kShuffle>
__global__ void block_per_row(T* y, T* s, float* rstd, const T* a, const T* b, const T* weight,
                              float eps, int64_t rows, int width) {
  __shared__ float shared[512];
  const int64_t start = blockIdx.x * int64_t(width);
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    round_to(s[start + i], to_float(a[start + i]) + to_float(b[start + i]));
    squares += to_float(s[start + i]) * to_float(s[start + i]);
  }
  const float total = kShuffle ? sum_over_block(squares, shared) : sum_by_tree(squares, shared);
  const float scale = inverse_root(total / width + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    round_to(y[start + i], to_float(s[start + i]) * scale * to_float(weight[i]));
  }
}

}  // namespace

// step: 1 to 3, as above; 4: vectors of 16 bytes; 5: and the row in registers (width <= 4096).
extern "C" cudaError_t launch_forward_step(int step, T* y, T* s, float* rstd, const T* a,
                                           const T* b, const T* weight, int64_t rows, int64_t width,
                                           cudaStream_t stream) {
  const float eps = 1e-6f;
  const auto n = static_cast<unsigned>(rows);
  const Weight w = {weight, false};
  if (step == 1)
    thread_per_row<<<n / 128 + 1, 128, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
  const auto by_block = step == 2 ? block_per_row<false> : block_per_row<true>;
  if (step == 2 || step == 3)
    by_block<<<n, 512, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
  if (step == 4) forward_any<T, 8><<<n, 512, 0, stream>>>(y, s, rstd, a, b, w, eps, width);
  if (step == 5) forward_rows<T, 1><<<n, 512, 0, stream>>>(y, s, rstd, a, b, w, eps, rows, width);
  return cudaGetLastError();
}

// For a width of 4096. step 1: every column by one thread that walks over all rows of its part, and
// reads each row twice; 2: a row in registers, its sums too, and no row ahead. parts: rows of sums,
// which add_partial adds. means: a number per row.
extern "C" cudaError_t launch_backward_step(int step, T* dx, T* dweight, float* sums, float* means,
                                            const T* dy, const T* ds, const T* s, const T* weight,
                                            const float* rstd, int64_t rows, int64_t width,
                                            int64_t parts, cudaStream_t stream) {
  const WeightGradient<float> to = {dweight, sums, false};
  const Weight w = {weight, false};
  const auto n = static_cast<unsigned>(rows), blocks = static_cast<unsigned>(parts);
  if (step == 1) {
    backward_means_any<T, 8><<<n, 512, 0, stream>>>(means, dy, s, w, rstd, width);
    backward_any<T, 8><<<blocks, 512, 0, stream>>>(dx, to, dy, ds, s, w, rstd, means, rows, width);
  } else {
    const auto kernel = backward_rows<T, 2, true, false>;
    kernel<<<blocks, dim3(256, 2), 0, stream>>>(dx, to, dy, ds, s, w, rstd, rows, width);
  }
  add_partial<T><<<4096 / 32, dim3(32, 32), 0, stream>>>(to, blocks, width);
  return cudaGetLastError();
}
