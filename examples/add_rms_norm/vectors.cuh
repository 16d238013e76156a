// Elements and vectors of them: conversions, 16-byte loads and stores, the weight in either dtype.
// Loops over a vector have a constant length: nvcc unrolls them, so vectors stay in registers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include <type_traits>

// Statistics and sums are float32: a sum of ones in bfloat16 would stop growing at 256.
template <typename T>
using Statistics = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Intrinsics, not operators and casts: torch compiles .cu files with __CUDA_NO_HALF_OPERATORS__.
__device__ inline float to_float(float x) { return x; }
__device__ inline double to_float(double x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void round_to(float& to, float x) { to = x; }
__device__ inline void round_to(double& to, double x) { to = x; }
__device__ inline void round_to(__half& to, float x) { to = __float2half_rn(x); }
__device__ inline void round_to(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
__device__ inline void round_to(__half2& to, float2 x) { to = __float22half2_rn(x); }
__device__ inline void round_to(__nv_bfloat162& to, float2 x) { to = __float22bfloat162_rn(x); }
__device__ inline float inverse_root(float x) { return __frsqrt_rn(x); }
__device__ inline double inverse_root(double x) { return 1 / sqrt(x); }

// One element, or 16 bytes of neighbouring ones, the widest load up to sm_90.
template <typename T, int kSize>
struct Vector {
  static_assert(kSize == 1 || kSize * sizeof(T) == 16);
  // Eight halves stay in pairs, each in one register: one instruction adds or rounds both. Taking
  // them out of v.at would take a register for each, and the backward kernels have none left.
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  union {
    std::conditional_t<kSize == 1, T, int4> word;  // what one instruction loads
    T at[kSize];
  };
  __device__ Vector() {}
  __device__ Pair& pair(int k) { return reinterpret_cast<Pair*>(at)[k]; }
  __device__ Pair pair(int k) const { return reinterpret_cast<const Pair*>(at)[k]; }
};

// Element k, widened.
template <typename T, int kSize>
__device__ inline auto element(const Vector<T, kSize>& v, int k) {
  if constexpr (kSize < 8) {
    return to_float(v.at[k]);
  } else if constexpr (std::is_same_v<T, __half>) {
    return k % 2 == 0 ? __low2float(v.pair(k / 2)) : __high2float(v.pair(k / 2));
  } else {
    const uint32_t pair = reinterpret_cast<const uint32_t*>(v.at)[k / 2];
    return __uint_as_float(k % 2 == 0 ? pair << 16 : pair & 0xffff0000);
  }
}

// The same bits as by way of float32, which has more than twice the digits of a half.
template <typename T, int kSize>
__device__ inline Vector<T, kSize> operator+(const Vector<T, kSize>& a, const Vector<T, kSize>& b) {
  Vector<T, kSize> sum;
  if constexpr (kSize == 8) {
    for (int k = 0; k < kSize / 2; ++k) sum.pair(k) = __hadd2_rn(a.pair(k), b.pair(k));
  } else {
    for (int k = 0; k < kSize; ++k) round_to(sum.at[k], to_float(a.at[k]) + to_float(b.at[k]));
  }
  return sum;
}

// Zeros where there is nothing to load.
template <int kSize, typename T>
__device__ inline Vector<T, kSize> load(const T* from, bool is_there = true) {
  Vector<T, kSize> v;
  v.word = decltype(v.word)();
  if (is_there) v.word = *reinterpret_cast<const decltype(v.word)*>(from);
  return v;
}
template <typename T, int kSize>
__device__ inline void store(T* to, const Vector<T, kSize>& v) {
  *reinterpret_cast<decltype(Vector<T, kSize>::word)*>(to) = v.word;
}

// A row may begin and end within a vector, which it then shares with its neighbours. A vector of
// which count elements exist, as the tensor ends there: all, some, or (count <= 0) none.
template <int kSize, bool kIsWhole = false, typename T>
__device__ inline Vector<T, kSize> load_some(const T* from, int count) {
  if (kIsWhole) return load<kSize>(from, count > 0);
  auto v = load<kSize>(from, count >= kSize);
  if (count > 0 && count < kSize) {  // a branch: without it, all would wait for the vector
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (k < count) v.at[k] = from[k];
    }
  }
  return v;
}
// Elements before begin, and from end on, belong to other rows.
template <bool kIsWhole = false, typename T, int kSize>
__device__ inline void store_some(T* to, const Vector<T, kSize>& v, int begin, int end) {
  if (kIsWhole ? end > 0 : begin <= 0 && end >= kSize) return store(to, v);
#pragma unroll
  for (int k = 0; k < kSize && !kIsWhole; ++k) {
    if (k >= begin && k < end) to[k] = v.at[k];
  }
}
template <typename T, int kSize>
__device__ inline void clear_others(Vector<T, kSize>& v, int begin, int end) {
  if (begin <= 0 && end >= kSize) return;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if (k < begin || k >= end) v.at[k] = T();
  }
}

// forward_rows with four vectors per thread is faster without pairs (measured on an H200).
template <typename T, bool kInPairs = true, int kSize, typename F>
__device__ inline Vector<T, kSize> rounded(const F (&x)[kSize]) {
  Vector<T, kSize> v;
  if constexpr (kSize == 8 && kInPairs) {
    for (int k = 0; k < kSize; k += 2) round_to(v.pair(k / 2), float2{x[k], x[k + 1]});
  } else {
    for (int k = 0; k < kSize; ++k) round_to(v.at[k], x[k]);
  }
  return v;
}
template <typename T, int kSize, typename F>
__device__ inline void store_rounded(T* to, const F (&x)[kSize]) {
  constexpr int kStep = kSize == 1 ? 1 : 16 / sizeof(T);
  for (int k = 0; k < kSize; k += kStep) {
    F part[kStep];
    for (int j = 0; j < kStep; ++j) part[j] = x[k + j];
    store(to + k, rounded<T>(part));
  }
}

// The weight and its gradient have a's dtype, or that of the statistics. A test at run time serves
// both with one kernel: a weight of a's dtype is loaded early, and widened when it is used; a wide
// one is loaded then, because it would take too many registers until then.
struct Weight {
  const void* data;
  bool is_wide;
};

template <typename T, int kSize, bool kIsWhole = true>
__device__ inline Vector<T, kSize> load_early(Weight weight, int64_t i, int64_t width) {
  const T* from = static_cast<const T*>(weight.data) + i;
  if (kIsWhole) return load<kSize>(from, !weight.is_wide && i < width);
  Vector<T, kSize> v;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    v.at[k] = load<1>(from + k, !weight.is_wide && i + k >= 0 && i + k < width).at[0];
  }
  return v;
}
template <bool kIsWhole = true, typename T, int kSize, typename F>
__device__ inline void widen(F (&w)[kSize], const Vector<T, kSize>& early, Weight weight, int64_t i,
                             int64_t width) {
  constexpr int kStep = kSize == 1 || !kIsWhole ? 1 : 16 / sizeof(F);
  for (int k = 0; k < kSize; ++k) w[k] = element(early, k);
  if (!weight.is_wide || i >= width) return;
  for (int k = 0; k < kSize; k += kStep) {
    const bool is_there = kIsWhole || (i + k >= 0 && i + k < width);
    const auto v = load<kStep>(static_cast<const F*>(weight.data) + i + k, is_there);
    for (int j = 0; j < kStep; ++j) w[k + j] = v.at[j];
  }
}

// Where kernels leave their sums for the weight's gradient: a row for each block, for add_partial
// to add up, or, if there is one block, the gradient itself.
struct WeightGradient {
  void* data;
  bool is_wide;
};

template <typename T, int kSize, typename F>
__device__ inline void store_sums(const F (&sums)[kSize], WeightGradient to, int64_t at) {
  if (to.is_wide) {
    store_rounded(static_cast<F*>(to.data) + at, sums);
  } else {
    store_rounded(static_cast<T*>(to.data) + at, sums);
  }
}
