// The launcher: asks plan.h for a kernel and starts it; and dequantize.
#include "common/launch.cuh"
#include "common/tensor_map.cuh"
#include "few_rows.cuh"
#include "int4_linear.h"
#include "many_rows.cuh"
#include "plan.h"

#include <algorithm>

namespace four_bit {

// Shape I of kShapes: up to R pieces of 16 rows per warp, STAGES slots.
template <int I, int R, int STAGES>
struct Few {
  static constexpr BlockShape B = kShapes[I];
  template <bool kCluster>
  using S = Shape<R, B.batch / 8, B.rows / kTile / R, B.along_k, STAGES, kCluster, B.per_processor>;
  static_assert(S<false>::kLoops == B.loops);

  template <typename T, bool kCluster = false>
  static const char* start(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
    if constexpr (!kCluster && B.most_splits > 1)
      if (plan.splits > 1) return start<T, true>(p, plan, stream);
    using Block = S<kCluster>;
    int log_splits = 0;
    while (1 << log_splits < plan.splits && 1 << log_splits < B.most_splits) ++log_splits;
    const int splits = 1 << log_splits;
    const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
    const int tiles = static_cast<int>(tiles_of(B, splits, p.n, p.batch, processors));
    const int tiles_of_x = divide_up(p.batch, B.batch);
    const int blocks =
        Block::kLoops ? std::min(tiles, std::max(processors / tiles_of_x, 1)) : tiles * splits;
    const auto kernel = few_rows<T, Block>;
    Launch how = {dim3(blocks, tiles_of_x), Block::kThreads, Block::kShared};
    how.cluster = splits;
    how.is_early = has_hopper_code(kernel);
    return launch(kernel, how, stream, p, tiles, log_splits);
  }
};

template <int I>
struct Many {
  static constexpr int BATCH = kShapes[I].batch, TEAMS = kShapes[I].rows / 64;
  using S = Tile<BATCH, TEAMS, BATCH <= 128 ? 2 : 1>;
  template <typename T>
  static const char* start(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
    const cuuint64_t n = p.n, k = p.k, groups = groups_of(p), batch = p.batch;
    const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const auto byte = CU_TENSOR_MAP_DATA_TYPE_UINT8, word = CU_TENSOR_MAP_DATA_TYPE_INT32;
    Maps maps;
    for (const char* error :
         {make_map<2>(&maps.x, type, 2, p.x, {k, batch}, {64, BATCH}, CU_TENSOR_MAP_SWIZZLE_128B),
          make_map<3>(&maps.codes, word, 4, p.packed, {256, k / 32, n / 64},
                      {256, S::CHUNKS * 2, TEAMS}),
          make_map<2>(&maps.scale, type, 2, p.scale, {n, groups}, {S::kRows, 1}),
          make_map<2>(&maps.zero, byte, 1, p.zero, {n, groups}, {S::kRows, 1})}) {
      if (error) return error;
    }
    const int tiles = divide_up(p.n, S::kRows) * divide_up(p.batch, BATCH);
    const auto start_tiles = [&](int first, int end, unsigned splits) {
      const unsigned count = end - first;
      const unsigned processors = device_attribute(cudaDevAttrMultiProcessorCount);
      const unsigned blocks = splits > 1 ? count * splits : std::min(count, processors);
      return launch(many_rows<T, S>, {blocks, S::kThreads, S::kShared, splits, true}, stream, maps,
                    p, splits, first, end);
    };
    if (plan.whole > 0) {
      if (const char* error = start_tiles(0, plan.whole, 1)) return error;
    }
    return start_tiles(plan.whole, tiles, plan.splits);
  }
};

template <typename T>
const char* start(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
  constexpr const char* (*kStart[])(const Int4Call&, const Plan&, cudaStream_t) = {
      Few<0, 4, 2>::start<T>, Few<1, 4, 3>::start<T>, Few<2, 4, 2>::start<T>,
      Few<3, 4, 3>::start<T>, Few<4, 4, 3>::start<T>, Few<5, 2, 2>::start<T>,
      Many<6>::start<T>,      Many<7>::start<T>,      Many<8>::start<T>,
      Many<9>::start<T>,      Many<10>::start<T>,     Many<11>::start<T>,
      Many<12>::start<T>,     Many<13>::start<T>,     Many<14>::start<T>,
      Many<15>::start<T>,     Many<16>::start<T>,     Many<17>::start<T>,
      Many<18>::start<T>,     Many<19>::start<T>,     Many<20>::start<T>,
      Many<21>::start<T>,     Many<22>::start<T>,
  };
  static_assert(sizeof(kStart) / sizeof(kStart[0]) == kShapeCount);
  return kStart[plan.shape](p, plan, stream);
}

// One thread for 16 columns of 2 rows. It reads a word from each of four lanes, so that it can
// write 16 bytes at a time.
template <typename T>
__global__ void dequantize(const Int4Call p) {
  using Pair = typename Half<T>::Pair;
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= static_cast<int64_t>(p.n) * p.k / 32) return;
  const int chunk = static_cast<int>(i / 128 % (p.k / 64)), step = i % 4;
  const int row = static_cast<int>(i / 128 / (p.k / 64)) * 64 + i % 128 / 4 * 2;
  const int column = chunk * 64 + step * 16;
  uint32_t words[4];
  for (int t = 0; t < 4; ++t)
    words[t] = static_cast<const Words*>(p.packed)[i / 4 * 4 + t].at[step];
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int64_t affine = static_cast<int64_t>(chunk / 2) * p.n + row + odd;
    const Pair m_zero = magic_pair<T>(static_cast<const uint8_t*>(p.zero)[affine]);
    const T scale = static_cast<const T*>(p.scale)[affine];
    const Pair factor = {scale, scale};
    for (int half = 0; half < 2; ++half) {
      uint32_t out[4];
      for (int t = 0; t < 4; ++t) {
        const uint32_t code = two_codes<T>(words[t], half * 2 + odd);
        out[t] = bits<uint32_t>(__hmul2(__hsub2(bits<Pair>(code), m_zero), factor));
      }
      T* to = static_cast<T*>(p.y) + static_cast<int64_t>(row + odd) * p.k + column + half * 8;
      *reinterpret_cast<uint4*>(to) = {out[0], out[1], out[2], out[3]};
    }
  }
}

}  // namespace four_bit

using namespace four_bit;

const char* launch_plan(const Int4Call& call, const Plan& plan, cudaStream_t stream) {
  return call.is_float16 ? start<__half>(call, plan, stream)
                         : start<__nv_bfloat16>(call, plan, stream);
}

const char* launch_int4_linear(const Int4Call& call, bool* is_done, cudaStream_t stream) {
  *is_done = false;
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  if (major < 8) {
    return "needs a GPU of compute capability 8.0 or newer: older ones have no mma.sync for these";
  }
  // The kernel has barriers in shared memory only where it was compiled for sm_90a.
  cudaFuncAttributes found = {};
  const bool has_wgmma =
      major == 9 &&
      cudaFuncGetAttributes(&found, many_rows<__half, Tile<64, 2, 2>>) == cudaSuccess &&
      found.sharedSizeBytes > 0;
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  Int4Call part = call;
  for (int left = call.batch; left > 0; left -= part.batch) {
    // A grid has at most 65535 blocks along x's rows.
    const Plan plan = make_plan(call.n, call.k, std::min(left, 65535 * 8), processors, has_wgmma);
    if (plan.shape == kDequantize) return nullptr;
    part.batch = plan.batch;
    if (const char* error = launch_plan(part, plan, stream)) return error;
    part.x = static_cast<const __half*>(part.x) + static_cast<int64_t>(plan.batch) * call.k;
    part.y = static_cast<__half*>(part.y) +
             static_cast<int64_t>(plan.batch) * call.n / (call.is_gated ? 2 : 1);
  }
  *is_done = true;
  return nullptr;
}

const char* launch_dequantize(const Int4Call& call, cudaStream_t stream) {
  const int64_t threads = static_cast<int64_t>(call.n) * call.k / 32;
  const auto kernel = call.is_float16 ? dequantize<__half> : dequantize<__nv_bfloat16>;
  return launch(kernel, {static_cast<unsigned>(divide_up(threads, 256)), 256}, stream, call);
}
