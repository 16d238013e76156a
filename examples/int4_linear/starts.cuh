// How a plan becomes a launch: which kernel each shape of plan.h is. Compiling all of them takes
// long, so each dtype has a file of its own.
#pragma once
#include "common/launch.cuh"
#include "common/tensor_map.cuh"
#include "few_rows.cuh"
#include "many_rows.cuh"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace four_bit {

// The kernel for few rows: up to kStrips strips of 16 rows per warp, kStages stages.
template <typename T, int I, int kStrips, int kStages, Norm kNorm = Norm::kNone, int kCluster = 1>
const char* start_few(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
  using S = FewRowsShape<I, kStrips, kStages, kCluster, kNorm>;
  // With a norm each block of a cluster has whole strips of 16 rows of W.
  constexpr int kMost = std::min(S::kBlock.most_splits, kNorm == Norm::kNone ? kMostSplits : 4);
  if constexpr (kCluster < kMost) {
    if (plan.splits > kCluster)
      return start_few<T, I, kStrips, kStages, kNorm, kCluster * 2>(p, plan, stream);
  }
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int tiles = static_cast<int>(tiles_of(S::kBlock, kCluster, p.n, p.batch, processors));
  const int tiles_of_x = divide_up(p.batch, S::kBatch);
  const int blocks =
      S::kIsPersistent ? std::min(tiles, std::max(processors / tiles_of_x, 1)) : tiles * kCluster;
  const auto kernel = few_rows<T, S>;
  const bool is_early = has_hopper_code(kernel);
  const Launch how = {dim3(blocks, tiles_of_x), S::kThreads, S::kShared, kCluster, is_early};
  return launch(kernel, how, stream, p, tiles);
}

template <typename T, int I>
const char* start_many(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
  using S = ManyRowsShape<I>;
  const cuuint64_t n = p.n, k = p.k, groups = groups_of(p), batch = p.batch;
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto byte = CU_TENSOR_MAP_DATA_TYPE_UINT8, word = CU_TENSOR_MAP_DATA_TYPE_INT32;
  Maps maps;
  for (const char* error :
       {make_map<2>(&maps.x, type, 2, p.x, {k, batch}, {64, S::kBatch}, CU_TENSOR_MAP_SWIZZLE_128B),
        make_map<3>(&maps.codes, word, 4, p.packed, {256, k / 32, n / 64},
                    {256, S::kChunks * 2, S::kConsumers}),
        make_map<2>(&maps.scale, type, 2, p.scale, {n, groups}, {S::kRows, 1}),
        make_map<2>(&maps.zero, byte, 1, p.zero, {n, groups}, {S::kRows, 1})}) {
    if (error) return error;
  }
  const int tiles = divide_up(p.n, S::kRows) * divide_up(p.batch, S::kBatch);
  const auto start_tiles = [&](int first, int end, unsigned splits) {
    const unsigned count = end - first;
    const unsigned processors = device_attribute(cudaDevAttrMultiProcessorCount);
    const unsigned blocks = splits > 1 ? count * splits : std::min(count, processors);
    return launch(many_rows<T, S>, {blocks, S::kThreads, S::kShared, splits, true}, stream, maps, p,
                  splits, first, end);
  };
  if (plan.unsplit > 0) {
    if (const char* error = start_tiles(0, plan.unsplit, 1)) return error;
  }
  return start_tiles(plan.unsplit, tiles, plan.splits);
}

// For up to kFewRows rows of bfloat16: the plan takes one of these shapes.
template <Norm kNorm>
const char* start_with_norm(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
  using T = __nv_bfloat16;
  if (plan.shape == 0) return start_few<T, 0, 4, 2, kNorm>(p, plan, stream);
  if (plan.shape == 1) return start_few<T, 1, 4, 3, kNorm>(p, plan, stream);
  return start_few<T, 2, 4, 2, kNorm>(p, plan, stream);
}

// Shapes of few_rows come first in kShapes.
template <typename T, int... I>
const char* start(const Int4Call& p, const Plan& plan, cudaStream_t stream,
                  std::integer_sequence<int, I...>) {
  constexpr const char* (*kStart[])(const Int4Call&, const Plan&, cudaStream_t) = {
      start_few<T, 0, 4, 2>, start_few<T, 1, 4, 3>, start_few<T, 2, 4, 2>,   start_few<T, 3, 4, 3>,
      start_few<T, 4, 4, 3>, start_few<T, 5, 2, 2>, start_many<T, 6 + I>...,
  };
  static_assert(sizeof(kStart) / sizeof(kStart[0]) == kShapeCount);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (p.residual) return start_with_norm<Norm::kBefore>(p, plan, stream);
    if (p.squares) return start_with_norm<Norm::kAfter>(p, plan, stream);
  }
  return kStart[plan.shape](p, plan, stream);
}

template <typename T>
const char* start(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
  return start<T>(p, plan, stream, std::make_integer_sequence<int, kShapeCount - 6>());
}

}  // namespace four_bit
