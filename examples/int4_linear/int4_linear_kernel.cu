// The launcher: asks plan.h for a kernel and starts it; and dequantize.
#include "few_rows.cuh"
#include "int4_linear.h"
#include "many_rows.cuh"
#include "plan.h"

#include <algorithm>

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

// is_early: the kernel waits by itself for the one before, which only sm_90 and newer can.
template <typename... Parameters>
const char* launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, size_t shared,
                   unsigned cluster, bool is_early, cudaStream_t stream, Parameters... parameters) {
  // For each call, as each device has its own setting.
  const auto setting = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const cudaError_t error = cudaFuncSetAttribute(kernel, setting, static_cast<int>(shared));
  if (error != cudaSuccess) return text(error);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  const unsigned count = is_early ? (cluster > 1 ? 2 : 1) : 0;
  const cudaLaunchConfig_t config = {blocks, threads, shared, stream, attributes, count};
  // Unlike cudaGetLastError, this returns no error of a launch before it.
  return text(cudaLaunchKernelEx(&config, kernel, parameters...));
}

template <typename T, typename S, int I>
const char* few(const Problem<T>& p, int cluster, cudaStream_t stream) {
  static_assert(S::kRows == kShapes[I].rows && S::kBatch == kShapes[I].batch &&
                S::WK == kShapes[I].along_k && S::BLOCKS == kShapes[I].per_processor);
  // Clusters and the early start are in the code only if it was compiled for sm_90 or newer: the
  // driver may have compiled older code for this GPU.
  cudaFuncAttributes found = {};
  const cudaError_t error = cudaFuncGetAttributes(&found, few_rows<T, S>);
  if (error != cudaSuccess) return text(error);
  const dim3 blocks(static_cast<unsigned>(divide_up(p.n, S::kRows) * cluster),
                    static_cast<unsigned>(divide_up(p.batch, S::kBatch)));
  return launch(few_rows<T, S>, blocks, S::kThreads, S::shared(cluster), cluster,
                found.ptxVersion >= 90, stream, p, cluster);
}

// How TMA finds a box of x. Its maker is in the driver, so it is asked for by name.
template <typename T>
const char* map_of_x(CUtensorMap& map, const Problem<T>& p, unsigned rows) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                     &result);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (!encode) return "the driver has no cuTensorMapEncodeTiled, expected that of CUDA 12 or newer";
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(p.k), static_cast<cuuint64_t>(p.batch)};
  const cuuint64_t strides[] = {sizes[0] * sizeof(T)};
  const cuuint32_t box[] = {64, rows}, steps[] = {1, 1};
  const CUresult error =
      encode(&map, type, 2, const_cast<T*>(p.x), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return error == CUDA_SUCCESS ? nullptr : "cuTensorMapEncodeTiled failed";
}

template <typename T, typename S, int I>
const char* many(const Problem<T>& p, int cluster, cudaStream_t stream) {
  static_assert(S::kRows == kShapes[I].rows && S::BATCH == kShapes[I].batch);
  CUtensorMap map;
  if (const char* error = map_of_x(map, p, S::BATCH)) return error;
  const dim3 blocks(static_cast<unsigned>(divide_up(p.n, S::kRows) * cluster),
                    static_cast<unsigned>(divide_up(p.batch, S::BATCH)));
  return launch(many_rows<T, S>, blocks, S::kThreads, S::kShared, cluster, true, stream, map, p,
                cluster);
}

// Row tiles per warp, x's rows / 8, warps along rows, warps along K, slots, blocks on a
// multiprocessor; x's rows, warpgroups. In the order of kShapes.
template <typename T>
const char* start(const Problem<T>& p, const Plan& plan, cudaStream_t stream) {
  constexpr const char* (*kStart[])(const Problem<T>&, int, cudaStream_t) = {
      few<T, Shape<4, 1, 1, 8, 2, 2>, 0>,
      few<T, Shape<4, 1, 1, 16, 2, 1>, 1>,
      few<T, Shape<4, 2, 2, 4, 4, 1>, 2>,
      few<T, Shape<4, 2, 1, 8, 3, 1>, 3>,
      few<T, Shape<4, 4, 2, 4, 3, 1>, 4>,
      many<T, Tile<32, 3>, 5>,
      many<T, Tile<64, 2>, 6>,
      many<T, Tile<64, 3>, 7>,
      many<T, Tile<128, 2>, 8>,
      many<T, Tile<128, 3>, 9>,
      many<T, Tile<192, 2>, 10>,
      many<T, Tile<256, 2>, 11>,
  };
  static_assert(sizeof(kStart) / sizeof(kStart[0]) == sizeof(kShapes) / sizeof(kShapes[0]));
  return kStart[plan.shape](p, plan.cluster, stream);
}

// One thread for 16 columns of 2 rows. It reads a word from each of four lanes, so that it can
// write 16 bytes at a time.
template <typename T>
__global__ void dequantize(const Problem<T> p) {
  using Pair = typename Half<T>::Pair;
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= static_cast<int64_t>(p.n) * p.k / 32) return;
  const int tile = static_cast<int>(i / 32 % (p.n / 16));
  const int chunk = static_cast<int>(i / 32 / (p.n / 16));
  const int step = i % 4, row = tile * kTile + i % 32 / 4 * 2, column = chunk * 64 + step * 16;
  uint32_t words[4];
  for (int t = 0; t < 4; ++t) words[t] = p.codes[i / 4 * 4 + t].at[step];
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int64_t affine = static_cast<int64_t>(chunk / 2) * p.n + row + odd;
    const Pair m_zero = magic_pair<T>(p.zero[affine]);
    const Pair factor = {p.scale[affine], p.scale[affine]};
    for (int half = 0; half < 2; ++half) {
      uint32_t out[4];
      for (int t = 0; t < 4; ++t) {
        const uint32_t code = two_codes<T>(words[t], half * 2 + odd);
        out[t] = bits<uint32_t>(__hmul2(__hsub2(bits<Pair>(code), m_zero), factor));
      }
      T* to = p.y + static_cast<int64_t>(row + odd) * p.k + column + half * 8;
      *reinterpret_cast<uint4*>(to) = {out[0], out[1], out[2], out[3]};
    }
  }
}

template <typename T>
Problem<T> problem(const Int4Call& c, int first_row_of_x, int batch) {
  const int64_t skipped = first_row_of_x, width = c.is_gated ? c.n / 2 : c.n;
  Problem<T> p = {};
  p.y = static_cast<T*>(c.y) + skipped * width;
  p.x = static_cast<const T*>(c.x) + skipped * c.k;
  p.codes = static_cast<const Words*>(c.packed);
  p.scale = static_cast<const T*>(c.scale);
  p.zero = static_cast<const uint8_t*>(c.zero);
  p.bias = static_cast<const T*>(c.bias);
  p.batch = batch;
  p.n = c.n;
  p.k = c.k;
  p.groups = static_cast<int>(divide_up(c.k, kGroup));
  p.is_gated = c.is_gated;
  return p;
}

template <typename T>
const char* start_dequantize(const Int4Call& call, cudaStream_t stream) {
  const int64_t threads = static_cast<int64_t>(call.n) * call.k / 32;
  const dim3 blocks(static_cast<unsigned>((threads + 255) / 256));
  return launch(dequantize<T>, blocks, 256, 0, 1, false, stream, problem<T>(call, 0, 0));
}

// A model asks for few sizes, again and again, and a plan takes a microsecond or more.
Plan plan_for(const Int4Call& call, int batch) {
  struct Kept {
    int n, k, batch, processors, has_wgmma;
    Plan plan;
  };
  thread_local Kept all[64] = {};
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  // The kernel has barriers in shared memory only where it was compiled for sm_90a.
  cudaFuncAttributes found = {};
  const bool has_wgmma =
      device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
      cudaFuncGetAttributes(&found, many_rows<__half, Tile<64, 2>>) == cudaSuccess &&
      found.sharedSizeBytes > 0;
  Kept& kept = all[(call.n / 64 * 31 + call.k / 64 * 7 + batch) % 64];
  if (kept.n != call.n || kept.k != call.k || kept.batch != batch ||
      kept.processors != processors || kept.has_wgmma != has_wgmma) {
    kept = {call.n,     call.k,    batch,
            processors, has_wgmma, make_plan(call.n, call.k, batch, processors, has_wgmma)};
  }
  return kept.plan;
}

}  // namespace four_bit

using namespace four_bit;

const char* launch_plan(const Int4Call& call, int first_row_of_x, const Plan& plan,
                        cudaStream_t stream) {
  return call.is_float16
             ? start(problem<__half>(call, first_row_of_x, plan.batch), plan, stream)
             : start(problem<__nv_bfloat16>(call, first_row_of_x, plan.batch), plan, stream);
}

const char* launch_int4_linear(const Int4Call& call, bool* is_done, cudaStream_t stream) {
  *is_done = false;
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 8) {
    return "needs a GPU of compute capability 8.0 or newer: older ones have no mma.sync for these";
  }
  for (int first = 0; first < call.batch;) {
    // A grid has at most 65535 blocks along x's rows.
    const Plan plan = plan_for(call, std::min(call.batch - first, 65535 * 8));
    if (plan.shape == kDequantize) return nullptr;
    if (const char* error = launch_plan(call, first, plan, stream)) return error;
    first += plan.batch;
  }
  *is_done = true;
  return nullptr;
}

const char* launch_dequantize(const Int4Call& call, cudaStream_t stream) {
  return call.is_float16 ? start_dequantize<__half>(call, stream)
                         : start_dequantize<__nv_bfloat16>(call, stream);
}
