// The lesson in steps, in bfloat16: each kernel here changes one thing of the one before it. The
// last steps are the kernels in use. `python3 examples/4_add_rms_norm/ladder.py` times them;
// docs/8_reduction.md tells what each of them wins.
#include "add_rms_norm_kernel.cuh"

namespace {

using T = __nv_bfloat16;

// 1. A thread a row, as on a CPU. Neighbouring threads read addresses that are a row apart, so each
// load of a warp touches 32 lines of the cache and uses 2 bytes of each.
__global__ void thread_a_row(T* y, T* s, float* rstd, const T* a, const T* b, const T* weight,
                             float eps, int64_t rows, int width) {
  const int64_t row = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (row >= rows) return;
  const int64_t start = row * width;
  float squares = 0;
  for (int i = 0; i < width; ++i) {
    s[start + i] = add(a[start + i], b[start + i]);
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

// 2. A block a row: neighbouring threads read neighbouring elements, and a row has 512 threads.
// 3. With kShuffle the sum takes one barrier instead of ten.
template <bool kShuffle>
__global__ void block_a_row(T* y, T* s, float* rstd, const T* a, const T* b, const T* weight,
                            float eps, int64_t rows, int width) {
  __shared__ float shared[512];
  const int64_t start = blockIdx.x * int64_t(width);
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const T sum = add(a[start + i], b[start + i]);
    s[start + i] = sum;
    squares += to_float(sum) * to_float(sum);
  }
  const float total = kShuffle ? sum_over_row<512>(squares, shared) : sum_by_tree(squares, shared);
  const float scale = inverse_root(total / width + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    round_to(y[start + i], to_float(s[start + i]) * scale * to_float(weight[i]));
  }
}

// 4. 16 bytes a load, and the row in registers: forward_rows with 512 threads, whatever the width.
// 5. As many threads as the row has vectors, and several rows a block where these are few.
// 6. The start of the next kernel overlaps the end of this one.

// Gradient 1. A block a row. The weight's gradient is a sum over rows: every block adds its row to
// the same few numbers in memory, one after the other, in an order that no run repeats.
template <int kThreads, int kVectors>
__global__ void backward_atomics(T* dx, float* dweight, const T* dy, const T* ds, const T* s,
                                 const T* weight, const float* rstd, int64_t rows, int width) {
  __shared__ float shared[kThreads / 32];
  const int64_t start = blockIdx.x * int64_t(width);
  const float scale = rstd[blockIdx.x];
  Vector<T> vs[kVectors], vdy[kVectors], vds[kVectors], w[kVectors];
  float product = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (threadIdx.x + v * kThreads) * 8;
    vs[v] = vdy[v] = vds[v] = w[v] = zero_vector<T>();
    if (i >= width) continue;
    vs[v] = load(s + start + i), vdy[v] = load(dy + start + i), vds[v] = load(ds + start + i);
    w[v] = load(weight + i);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (threadIdx.x + v * kThreads) * 8;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float x = to_float(vs[v].at[k]) * scale, grad = to_float(vdy[v].at[k]);
      product += grad * to_float(w[v].at[k]) * x;
      if (i < width) atomicAdd(dweight + i + k, grad * x);
    }
  }
  const float mean = sum_over_row<kThreads>(product, shared) / width;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (threadIdx.x + v * kThreads) * 8;
    float grad[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float x = to_float(vs[v].at[k]) * scale;
      const float g = to_float(vdy[v].at[k]) * to_float(w[v].at[k]);
      grad[k] = scale * (g - x * mean) + to_float(vds[v].at[k]);
    }
    Vector<T> result;
    round_to(result, grad);
    if (i < width) store(dx + start + i, result);
  }
}

// Gradient 2. Persistent blocks with the weight's gradient in registers: backward_rows<..., false>.
// Gradient 3. The next row is loaded before this one is worked on: backward_rows<..., true>.

const char* last_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

// step: 1 to 5, as above. width: a multiple of 8, at most 4096. The launcher of the kernels in use
// is step 6.
extern "C" const char* launch_forward_step(int step, T* y, T* s, float* rstd, const T* a,
                                           const T* b, const T* weight, int64_t rows, int width,
                                           cudaStream_t stream) {
  const float eps = 1e-6f;
  const auto n = static_cast<unsigned>(rows);
  switch (step) {
    case 1:
      thread_a_row<<<(n + 127) / 128, 128, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
      break;
    case 2:
      block_a_row<false><<<n, 512, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
      break;
    case 3:
      block_a_row<true><<<n, 512, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
      break;
    case 4:
      forward_rows<T, 512, 1, 1><<<n, 512, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
      break;
    case 5:
      if (width <= 256) {
        forward_rows<T, 32, 1, 4>
            <<<(n + 3) / 4, 128, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
      } else {
        forward_rows<T, 512, 1, 1>
            <<<n, 512, 0, stream>>>(y, s, rstd, a, b, weight, eps, rows, width);
      }
      break;
    default:
      return "no such step";
  }
  return last_error();
}

// step: 1 or 2. sums: 1 needs width zeros and leaves the weight's gradient in float32; 2 writes
// blocks x width sums, which add_partial adds.
extern "C" const char* launch_backward_step(int step, T* dx, T* dweight, float* sums, const T* dy,
                                            const T* ds, const T* s, const T* weight,
                                            const float* rstd, int64_t rows, int width, int blocks,
                                            cudaStream_t stream) {
  if (width != 4096 && width != 256) return "expected a width of 256 or 4096";
  if (step == 1) {
    cudaMemsetAsync(sums, 0, width * sizeof(float), stream);
    const auto n = static_cast<unsigned>(rows);
    if (width == 256) {
      backward_atomics<32, 1><<<n, 32, 0, stream>>>(dx, sums, dy, ds, s, weight, rstd, rows, width);
    } else {
      backward_atomics<512, 1>
          <<<n, 512, 0, stream>>>(dx, sums, dy, ds, s, weight, rstd, rows, width);
    }
    add_partial<T, float><<<(width + 31) / 32, dim3(32, 32), 0, stream>>>(dweight, sums, 1, width);
    return last_error();
  }
  if (step != 2) return "no such step";
  if (width == 256) {
    backward_rows<T, 32, 2, 16, false>
        <<<blocks, 512, 0, stream>>>(dx, sums, dy, ds, s, weight, rstd, rows, width);
  } else {
    backward_rows<T, 256, 2, 2, false>
        <<<blocks, 512, 0, stream>>>(dx, sums, dy, ds, s, weight, rstd, rows, width);
  }
  add_partial<T, float>
      <<<(width + 31) / 32, dim3(32, 32), 0, stream>>>(dweight, sums, blocks, width);
  return last_error();
}
