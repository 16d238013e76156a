// The CUDA kernels. Forward reads a and b and writes s and y; backward reads s, dy and ds and
// writes dx. Almost no arithmetic, so memory sets the time: each byte crosses it once, because a
// row stays in registers between the sum over it and its use.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

// Statistics and sums are float32: a sum of 1000 squares in bfloat16 would stop growing at 256.
template <typename T>
struct Statistics {
  using type = float;
};
template <>
struct Statistics<double> {
  using type = double;
};

// Intrinsics, not operators and casts: torch compiles .cu files with __CUDA_NO_HALF_OPERATORS__.
__device__ inline float to_float(float x) { return x; }
__device__ inline double to_float(double x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void round_to(float& to, float x) { to = x; }
__device__ inline void round_to(double& to, double x) { to = x; }
__device__ inline void round_to(__half& to, float x) { to = __float2half_rn(x); }
__device__ inline void round_to(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
__device__ inline float add(float a, float b) { return a + b; }
__device__ inline double add(double a, double b) { return a + b; }
__device__ inline __half add(__half a, __half b) { return __hadd(a, b); }
__device__ inline __nv_bfloat16 add(__nv_bfloat16 a, __nv_bfloat16 b) { return __hadd(a, b); }
__device__ inline float inverse_root(float x) { return __frsqrt_rn(x); }
__device__ inline double inverse_root(double x) { return 1 / sqrt(x); }

// 16 bytes, the widest load there is, as elements and in pairs: one instruction adds or converts
// two halves.
template <typename T>
struct Vector {
  static constexpr int kSize = 16 / sizeof(T);
  union {
    int4 bytes;
    T at[kSize];
  };
  __device__ Vector() {}
};

template <typename T>
__device__ inline Vector<T> zero_vector() {
  Vector<T> v;
  v.bytes = make_int4(0, 0, 0, 0);
  return v;
}

__device__ inline Vector<float> add(const Vector<float>& a, const Vector<float>& b) {
  Vector<float> s;
#pragma unroll
  for (int k = 0; k < 4; ++k) s.at[k] = a.at[k] + b.at[k];
  return s;
}
__device__ inline Vector<__half> add(const Vector<__half>& a, const Vector<__half>& b) {
  Vector<__half> s;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    const __half2 two =
        __hadd2(__halves2half2(a.at[k], a.at[k + 1]), __halves2half2(b.at[k], b.at[k + 1]));
    s.at[k] = __low2half(two), s.at[k + 1] = __high2half(two);
  }
  return s;
}
__device__ inline Vector<__nv_bfloat16> add(const Vector<__nv_bfloat16>& a,
                                            const Vector<__nv_bfloat16>& b) {
  Vector<__nv_bfloat16> s;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    const __nv_bfloat162 two =
        __hadd2(__halves2bfloat162(a.at[k], a.at[k + 1]), __halves2bfloat162(b.at[k], b.at[k + 1]));
    s.at[k] = __low2bfloat16(two), s.at[k + 1] = __high2bfloat16(two);
  }
  return s;
}

__device__ inline void round_to(Vector<float>& to, const float (&x)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) to.at[k] = x[k];
}
__device__ inline void round_to(Vector<__half>& to, const float (&x)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    const __half2 two = __floats2half2_rn(x[k], x[k + 1]);
    to.at[k] = __low2half(two), to.at[k + 1] = __high2half(two);
  }
}
__device__ inline void round_to(Vector<__nv_bfloat16>& to, const float (&x)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x[k], x[k + 1]);
    to.at[k] = __low2bfloat16(two), to.at[k + 1] = __high2bfloat16(two);
  }
}

template <typename T>
__device__ inline Vector<T> load(const T* from) {
  Vector<T> v;
  v.bytes = *reinterpret_cast<const int4*>(from);
  return v;
}
template <typename T>
__device__ inline void store(T* to, const Vector<T>& v) {
  *reinterpret_cast<int4*>(to) = v.bytes;
}

// Programmatic dependent launch, from sm_90 on: while the last blocks of one kernel run, those of
// the next one may already start (let_next_start) and wait here, before they touch memory, until
// the first kernel has ended. It hides the 0.6 us that a launch costs on the GPU: 1.3 instead
// of 1.9 us for one row of 1024, 1% at 16384 rows of 4096 (H200).
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// The sum of x over the kThreads neighbours that share a row. All of them get it, and the same
// bits. First each warp by shuffles, which pass registers from thread to thread; then the warps
// through shared memory, one number each. A block calls it with all its threads: it has a barrier.
// Call it with the other half of `shared` next time (see backward_rows), or a fast warp overwrites
// what a slow one has yet to read.
template <int kThreads, typename F>
__device__ inline F sum_over_row(F x, F* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffff, x, distance);
  }
  if (kThreads == 32) return x;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) shared[warp] = x;
  __syncthreads();
  constexpr int kWarps = kThreads / 32;
  const int first = warp / kWarps * kWarps;  // of this row
  x = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) x += shared[first + i];
  return x;
}

// Forward: kThreads threads a row, with kVectors times 16 bytes each; kRows rows a block.
// No loop over rows and no more shared memory than the sum needs: many small blocks, of which some
// load while others wait for their sums. (Persistent blocks that fetch the next row early, in
// registers or by cp.async into shared memory: 4 to 13% slower at 16384 rows, H200.)
template <typename T, int kThreads, int kVectors, int kRows>
__global__ void __launch_bounds__(kThreads* kRows, kVectors == 1 ? 2048 / (kThreads * kRows) : 1)
    forward_rows(T* y, T* s, float* rstd, const T* a, const T* b, const T* weight, float eps,
                 int64_t rows, int width) {
  __shared__ float shared[kThreads * kRows / 32];
  const int64_t row = blockIdx.x * int64_t(kRows) + threadIdx.x / kThreads;
  const int lane = threadIdx.x % kThreads;
  const int64_t start = row * width;
  wait_for_previous();
  let_next_start();

  // All loads first, so that they are under way together.
  Vector<T> sum[kVectors], other[kVectors], w[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (lane + v * kThreads) * Vector<T>::kSize;
    sum[v] = other[v] = zero_vector<T>();
    if (row < rows && i < width) {
      sum[v] = load(a + start + i);
      other[v] = load(b + start + i);
      w[v] = load(weight + i);
    }
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (lane + v * kThreads) * Vector<T>::kSize;
    sum[v] = add(sum[v], other[v]);
#pragma unroll
    for (int k = 0; k < Vector<T>::kSize; ++k) {
      const float x = to_float(sum[v].at[k]);
      squares += x * x;
    }
    if (row < rows && i < width) store(s + start + i, sum[v]);
  }
  const float scale = inverse_root(sum_over_row<kThreads>(squares, shared) / width + eps);
  if (row < rows && lane == 0) rstd[row] = scale;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (lane + v * kThreads) * Vector<T>::kSize;
    if (row < rows && i < width) {
      float x[Vector<T>::kSize];
#pragma unroll
      for (int k = 0; k < Vector<T>::kSize; ++k) {
        x[k] = to_float(sum[v].at[k]) * scale * to_float(w[v].at[k]);
      }
      Vector<T> result;
      round_to(result, x);
      store(y + start + i, result);
    }
  }
}

// Forward for any width, alignment and dtype: a block a row, one element at a time; the row is read
// again for y.
template <typename T, typename F, int kThreads>
__global__ void __launch_bounds__(kThreads) forward_any(T* y, T* s, F* rstd, const T* a, const T* b,
                                                        const T* weight, F eps, int64_t width) {
  __shared__ F shared[kThreads / 32];
  const int64_t start = blockIdx.x * width;
  wait_for_previous();
  let_next_start();
  F squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const T sum = add(a[start + i], b[start + i]);
    s[start + i] = sum;
    squares += to_float(sum) * to_float(sum);
  }
  const F scale = inverse_root(sum_over_row<kThreads>(squares, shared) / width + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    round_to(y[start + i], to_float(s[start + i]) * scale * to_float(weight[i]));
  }
}

// Backward. With x = s * rstd (the normalized row) and g = dy * weight:
//     dx = rstd * (g - x * mean(g * x)) + ds          dweight = the sum over all rows of dy * x
// dweight is a sum over rows, which no single block sees. Atomics would add in whatever order the
// blocks come, and give other bits each time. So blocks are persistent: each walks over rows, keeps
// in registers the sums for its columns, writes them once to partial[block], and add_partial adds
// these in a fixed order.
//
// A block has kGroups rows at a time, kThreads threads each. With kAhead the next row is loaded
// before this one is worked on: otherwise the memory idles at each row's barrier (6 to 22% slower
// at 16384 rows, H200).
template <typename T, int kThreads, int kVectors, int kGroups, bool kAhead = true>
__global__ void __launch_bounds__(kThreads* kGroups, 1)
    backward_rows(T* dx, float* partial, const T* dy, const T* ds, const T* s, const T* weight,
                  const float* rstd, int64_t rows, int width) {
  constexpr int kSize = Vector<T>::kSize;
  __shared__ float shared[2][kThreads * kGroups / 32];
  __shared__ float columns[kGroups > 1 ? kThreads * kVectors * kSize : 1];
  const int lane = threadIdx.x % kThreads, group = threadIdx.x / kThreads;
  wait_for_previous();
  let_next_start();

  Vector<T> w[kVectors];
  float dweight[kVectors][kSize];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (lane + v * kThreads) * kSize;
    w[v] = zero_vector<T>();
    if (i < width) w[v] = load(weight + i);
#pragma unroll
    for (int k = 0; k < kSize; ++k) dweight[v][k] = 0;
  }

  Vector<T> next_s[kVectors], next_dy[kVectors], next_ds[kVectors];
  float next_scale;
  const auto fetch = [&](int64_t row) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = (lane + v * kThreads) * kSize;
      next_s[v] = next_dy[v] = next_ds[v] = zero_vector<T>();
      if (row < rows && i < width) {
        next_s[v] = load(s + row * width + i);
        next_dy[v] = load(dy + row * width + i);
        if (ds != nullptr) next_ds[v] = load(ds + row * width + i);
      }
    }
    next_scale = row < rows ? rstd[row] : 0;
  };

  const int64_t step = int64_t(gridDim.x) * kGroups;
  int64_t row = blockIdx.x * int64_t(kGroups) + group;
  if (kAhead) fetch(row);
  // All groups of a block take the same number of turns, for the barrier's sake.
  for (int64_t first = row - group, turn = 0; first < rows; first += step, row += step, ++turn) {
    if (!kAhead) fetch(row);
    Vector<T> this_s[kVectors], this_dy[kVectors], this_ds[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      this_s[v] = next_s[v], this_dy[v] = next_dy[v], this_ds[v] = next_ds[v];
    }
    const float scale = next_scale;
    if (kAhead) fetch(row + step);

    float product = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const float x = to_float(this_s[v].at[k]) * scale, grad = to_float(this_dy[v].at[k]);
        product += grad * to_float(w[v].at[k]) * x;
        dweight[v][k] += grad * x;
      }
    }
    const float mean = sum_over_row<kThreads>(product, shared[turn % 2]) / width;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = (lane + v * kThreads) * kSize;
      float grad[kSize];
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const float x = to_float(this_s[v].at[k]) * scale;
        const float g = to_float(this_dy[v].at[k]) * to_float(w[v].at[k]);
        grad[k] = scale * (g - x * mean) + to_float(this_ds[v].at[k]);
      }
      if (row < rows && i < width) {
        Vector<T> result;
        round_to(result, grad);
        store(dx + row * width + i, result);
      }
    }
  }

  // The groups' sums, from the last group to the first.
  for (int from = kGroups - 1; from > 0; --from) {
    if (group == from) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          float& sum = columns[(v * kSize + k) * kThreads + lane];
          sum = from == kGroups - 1 ? dweight[v][k] : sum + dweight[v][k];
        }
      }
    }
    __syncthreads();
  }
  if (group > 0) return;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (lane + v * kThreads) * kSize;
    if (i >= width) continue;
#pragma unroll
    for (int k = 0; k < kSize; k += 4) {
      Vector<float> four;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        four.at[j] = dweight[v][k + j];
        if (kGroups > 1) four.at[j] += columns[(v * kSize + k + j) * kThreads + lane];
      }
      store(partial + blockIdx.x * int64_t(width) + i + k, four);
    }
  }
}

// Backward for any width, alignment and dtype. Each thread owns its columns of partial[block], and
// adds to them in memory.
template <typename T, typename F, int kThreads>
__global__ void __launch_bounds__(kThreads)
    backward_any(T* dx, F* partial, const T* dy, const T* ds, const T* s, const T* weight,
                 const F* rstd, int64_t rows, int64_t width) {
  __shared__ F shared[2][kThreads / 32];
  wait_for_previous();
  let_next_start();
  F* sums = partial + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sums[i] = 0;
  for (int64_t row = blockIdx.x, turn = 0; row < rows; row += gridDim.x, ++turn) {
    const int64_t start = row * width;
    const F scale = rstd[row];
    F product = 0;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      const F x = to_float(s[start + i]) * scale, grad = to_float(dy[start + i]);
      product += grad * to_float(weight[i]) * x;
      sums[i] += grad * x;
    }
    const F mean = sum_over_row<kThreads>(product, shared[turn % 2]) / width;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      const F x = to_float(s[start + i]) * scale;
      const F g = to_float(dy[start + i]) * to_float(weight[i]);
      const F grad = scale * (g - x * mean);
      round_to(dx[start + i], ds == nullptr ? grad : grad + to_float(ds[start + i]));
    }
  }
}

// dweight[i] = the sum of partial[0..parts)[i], for 32 columns a block. First a column has 32
// threads, each of another warp, so that a warp reads neighbours; then a warp, for its shuffles.
template <typename T, typename F>
__global__ void __launch_bounds__(1024)
    add_partial(T* dweight, const F* partial, int parts, int64_t width) {
  __shared__ F
      shared[32][33];  // 33: read by columns, 32 would make all threads of a warp wait for one bank
  const int64_t first = blockIdx.x * int64_t(32);
  wait_for_previous();
  let_next_start();
  F sum = 0;
  if (first + threadIdx.x < width) {
    for (int part = threadIdx.y; part < parts; part += 32) {
      sum += partial[part * width + first + threadIdx.x];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = sum_over_row<32>(shared[threadIdx.x][threadIdx.y], static_cast<F*>(nullptr));
  if (threadIdx.x == 0 && first + threadIdx.y < width) round_to(dweight[first + threadIdx.y], sum);
}
