// How a plan becomes a launch: which kernel each shape of plan.h is. Compiling all of them takes
// long, so each dtype has a file of its own.
#pragma once
#include "common/launch.cuh"
#include "common/tensor_map.cuh"
#include "few_rows.cuh"
#include "many_rows.cuh"

#include <algorithm>

namespace four_bit {

// Shape I of kShapes: up to R pieces of 16 rows per warp, STAGES slots.
template <int I, int R, int STAGES>
struct Few {
  static constexpr BlockShape B = kShapes[I];
  template <int CLUSTER>
  using S = Shape<R, B.batch / 8, B.rows / kTile / R, B.along_k, STAGES, CLUSTER, B.per_processor>;
  static_assert(S<1>::kLoops == B.loops);

  template <typename T, int CLUSTER = 1>
  static const char* start(const Int4Call& p, const Plan& plan, cudaStream_t stream) {
    if constexpr (CLUSTER < B.most_splits)
      if (plan.splits > CLUSTER) return start<T, CLUSTER * 2>(p, plan, stream);
    using Block = S<CLUSTER>;
    const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
    const int tiles = static_cast<int>(tiles_of(B, CLUSTER, p.n, p.batch, processors));
    const int tiles_of_x = divide_up(p.batch, B.batch);
    const int blocks =
        Block::kLoops ? std::min(tiles, std::max(processors / tiles_of_x, 1)) : tiles * CLUSTER;
    const auto kernel = few_rows<T, Block>;
    Launch how = {dim3(blocks, tiles_of_x), Block::kThreads, Block::kShared};
    how.cluster = CLUSTER;
    how.is_early = has_hopper_code(kernel);
    return launch(kernel, how, stream, p, tiles);
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

}  // namespace four_bit
