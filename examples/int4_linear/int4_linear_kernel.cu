// The launcher: which shape of the kernel for which sizes, and dequantize. The choices come from an
// H200; a GPU with less shared memory, or older than sm_90, gets the one shape that all can run.
#include "int4_linear_kernel.cuh"

#include "int4_linear.h"

namespace four_bit {

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

const char* text(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // or torch would report it again, at its next call
  return cudaGetErrorString(error);
}

template <typename T, typename S>
const char* launch(const Problem<T>& p, bool is_hopper, cudaStream_t stream) {
  const auto kernel = int4_linear<T, S>;
  // For each call, as each device has its own setting.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared);
  if (error != cudaSuccess) return text(error);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {S::CLUSTER, 1, 1};
  const unsigned count = is_hopper ? (S::CLUSTER > 1 ? 2 : 1) : 0;
  const dim3 blocks((p.n + S::kRows - 1) / S::kRows * S::CLUSTER,
                    (p.batch + S::kBatch - 1) / S::kBatch);
  const cudaLaunchConfig_t config = {blocks, S::kThreads, S::kShared, stream, attributes, count};
  return text(cudaLaunchKernelEx(&config, kernel, p));
}

// Shape: row tiles per warp, x's rows / 8, warps along rows, warps along K, slots, blocks in a
// cluster, blocks on a multiprocessor. Few rows of W need smaller blocks, or K split over a
// cluster, to give each multiprocessor work.
template <typename T>
const char* choose(const Problem<T>& p, cudaStream_t stream) {
  using Portable = Shape<4, 1, 1, 8, 2, 1, 2>;
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  // Clusters and the early start are in the code only if it was compiled for sm_90 or newer: the
  // driver may have compiled older code for this GPU.
  cudaFuncAttributes found = {};
  const cudaError_t error = cudaFuncGetAttributes(&found, int4_linear<T, Portable>);
  if (error != cudaSuccess) return text(error);
  const bool has_memory = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= 227 * 1024;
  if (found.ptxVersion < 90 || !has_memory) return launch<T, Portable>(p, false, stream);
  // Blocks of 64 rows, for each multiprocessor.
  const double blocks = p.n / 64.0 / processors;
  const bool is_short = blocks < 0.75, is_tall = blocks > 1.5, is_very_tall = blocks > 3;
  if (p.batch <= 8) {
    if (is_short) return launch<T, Shape<4, 1, 1, 8, 3, 2, 1>>(p, true, stream);
    if (is_tall) return launch<T, Portable>(p, true, stream);
    return launch<T, Shape<4, 1, 1, 16, 2, 1, 1>>(p, true, stream);
  }
  if (p.batch <= 16) {
    if (is_short) return launch<T, Shape<4, 2, 1, 8, 3, 2, 1>>(p, true, stream);
    if (is_tall) return launch<T, Shape<4, 2, 2, 4, 4, 1, 1>>(p, true, stream);
    return launch<T, Shape<4, 2, 2, 4, 4, 2, 1>>(p, true, stream);
  }
  if (p.batch <= 32) {
    if (is_short) return launch<T, Shape<4, 4, 1, 8, 2, 2, 1>>(p, true, stream);
    if (is_tall) return launch<T, Shape<4, 4, 2, 4, 3, 1, 1>>(p, true, stream);
    return launch<T, Shape<4, 4, 2, 4, 3, 2, 1>>(p, true, stream);
  }
  if (is_short) return launch<T, Shape<2, 8, 2, 4, 2, 2, 1>>(p, true, stream);
  if (is_very_tall) return launch<T, Shape<4, 8, 4, 2, 2, 1, 1>>(p, true, stream);
  if (is_tall) return launch<T, Shape<4, 8, 2, 4, 2, 1, 1>>(p, true, stream);
  return launch<T, Shape<4, 8, 2, 4, 2, 2, 1>>(p, true, stream);
}

// One thread for each 16 bytes of codes: 2 rows of 16 columns.
template <typename T>
__global__ void dequantize(T* weight, const Words* codes, const T* scale, const uint8_t* zero,
                           int n, int k) {
  using Pair = typename Half<T>::Pair;
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= static_cast<int64_t>(n) * k / 32) return;
  const int lane = i % 32, chunk = i / 32 % (k / 64);
  const int row = i / 32 / (k / 64) * kTile + lane / 4 * 2, column = chunk * 64 + lane % 4 * 8;
  const Words found = codes[i];
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int64_t affine = static_cast<int64_t>(chunk / 2) * n + row + odd;
    const Pair m_zero = magic_pair<T>(zero[affine]);
    const Pair factor = {scale[affine], scale[affine]};
    for (int half = 0; half < 2; ++half) {
      uint32_t out[4];
      for (int j = 0; j < 4; ++j) {
        const uint32_t code = two_codes<T>(found.at[half * 2 + j / 2], j % 2 * 2 + odd);
        out[j] = bits<uint32_t>(__hmul2(__hsub2(bits<Pair>(code), m_zero), factor));
      }
      T* to = weight + static_cast<int64_t>(row + odd) * k + column + half * 32;
      *reinterpret_cast<uint4*>(to) = {out[0], out[1], out[2], out[3]};
    }
  }
}

template <typename T>
const char* run(const Int4Call& c, cudaStream_t stream) {
  const auto *x = static_cast<const T*>(c.x), *bias = static_cast<const T*>(c.bias);
  const auto* codes = static_cast<const Words*>(c.packed);
  const auto* scale = static_cast<const T*>(c.scale);
  const auto* zero = static_cast<const uint8_t*>(c.zero);
  const Problem<T> p = {static_cast<T*>(c.y), x, codes, scale, zero, bias, c.batch, c.n, c.k};
  if (x) return choose(p, stream);
  const int64_t threads = static_cast<int64_t>(p.n) * p.k / 32;
  const dim3 blocks(static_cast<unsigned>((threads + 255) / 256));
  const cudaLaunchConfig_t config = {blocks, 256, 0, stream, nullptr, 0};
  // Unlike <<<>>> and cudaGetLastError, this returns no error of a launch before it.
  return text(cudaLaunchKernelEx(&config, dequantize<T>, p.y, p.codes, p.scale, p.zero, p.n, p.k));
}

}  // namespace four_bit

const char* launch_int4_linear(const Int4Call& call, cudaStream_t stream) {
  if (four_bit::device_attribute(cudaDevAttrComputeCapabilityMajor) < 8) {
    return "needs a GPU of compute capability 8.0 or newer: older ones have no mma.sync for these";
  }
  return call.is_float16 ? four_bit::run<__half>(call, stream)
                         : four_bit::run<__nv_bfloat16>(call, stream);
}
