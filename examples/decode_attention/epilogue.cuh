// The epilogue of attend(): the parts of a block's warps are joined, and then those of the blocks
// of a cluster. Always in the same order, so two runs give the same bits.
#pragma once
#include <cooperative_groups.h>

#include "tile.cuh"

namespace decode {

// Shared memory of the epilogue: what each warp of the block has found; its out lies where its
// pipeline was. And what the blocks of a cluster send to this one.
template <typename S>
struct Parts {
  static constexpr int kVectors = S::kColumns / 4;  // float4 of a head: four columns each
  Softmax of_warps[kMaxWarps][S::kHeads], of_blocks[kMaxCluster][S::kHeads];
  float4 outs_of_blocks[S::kHeads * kVectors];
  __device__ static float4* out_of_warp(char* memory, int warp, int head) {
    constexpr int kPadded = kVectors + 1;  // so that the same column of heads lies in several banks
    return reinterpret_cast<float4*>(memory + warp * kPipelineBytes) + head * kPadded;
  }
};

template <typename S>
__device__ inline void store_part(Parts<S>& parts, char* memory, Lane<S>& my, const Work& work) {
  for (int n = 0; n < S::kHeadTiles; ++n) {
    for (int i = 0; i < S::kHeadsPerLane; ++i) {
      float& sum = my.sum[n][i];
      for (int j = 4; j < 32; j *= 2) sum += __shfl_xor_sync(~0u, sum, j);
      const int head = n * 8 + i * 4 + work.lane_pair;
      if (head >= work.group) continue;
      if (work.lane_row == 0) parts.of_warps[work.warp][head] = {my.maximum[n][i], sum};
      // Rows lane_row and lane_row + 8 of each 16. With int8 ldmatrix delivers columns in pairs:
      // there they are the columns 2 lane_row and 2 lane_row + 1.
      constexpr int kFirst = S::is_int8 ? 2 : 1, kSecond = S::is_int8 ? 1 : 8;
      float* to = reinterpret_cast<float*>(parts.out_of_warp(memory, work.warp, head));
      to += kFirst * work.lane_row;
      for (int j = 0; j < S::kSteps; ++j) {
        to[j * 16] = my.out[j][n][i];
        to[j * 16 + kSecond] = my.out[j][n][i + 2];
      }
    }
  }
}

// Joins the parts of the warps. An item is four columns of a head; a thread takes one. The result
// goes to memory, to scratch memory for the second kernel, or to the block of the cluster that
// finishes it: each finishes every splits-th (a power of 2) of the items.
template <typename S>
__device__ inline void join_warps(Parts<S>& parts, char* memory, const AttendCall& p,
                                  const Work& work) {
  constexpr int kVectors = Parts<S>::kVectors;
  const int splits = p.plan.splits, shift = __ffs(splits) - 1, items = work.group * kVectors;
  for (int item = threadIdx.x; item < items; item += blockDim.x) {
    const int head = item / kVectors, vector = item % kVectors;
    const Part all = join_parts<kMaxWarps>(
        work.warps, [&](int i) { return parts.of_warps[i][head]; },
        [&](int i) { return parts.out_of_warp(memory, i, head)[vector]; });
    if (splits == 1) {
      finish<typename S::Query, S::kColumns>(p, work.row, work.key_head * work.group + head, vector,
                                             all);
    } else if (!p.plan.is_cluster) {
      const int64_t part = static_cast<int64_t>(blockIdx.x) * work.group + head;
      scratch_outs(p)[part * kVectors + vector] = all.out;
      if (vector == 0) scratch_softmaxes(p)[part] = all.softmax;
#if __CUDA_ARCH__ >= 900
    } else {
      const auto cluster = cooperative_groups::this_cluster();
      float4* const to = &parts.outs_of_blocks[work.rank * (items >> shift) + (item >> shift)];
      *cluster.map_shared_rank(to, item & (splits - 1)) = all.out;
      if (vector < splits)
        *cluster.map_shared_rank(&parts.of_blocks[work.rank][head], vector) = all.softmax;
#endif
    }
  }
}

template <typename S>
__device__ inline void join_blocks(const Parts<S>& parts, const AttendCall& p, const Work& work) {
  constexpr int kVectors = Parts<S>::kVectors;
  const int splits = p.plan.splits, shift = __ffs(splits) - 1, items = work.group * kVectors;
  for (int i = threadIdx.x; i < items >> shift; i += blockDim.x) {
    const int item = (i << shift) + work.rank, head = item / kVectors;
    const Part all = join_parts<kMaxCluster>(
        splits, [&](int j) { return parts.of_blocks[j][head]; },
        [&](int j) { return parts.outs_of_blocks[j * (items >> shift) + i]; });
    finish<typename S::Query, S::kColumns>(p, work.row, work.key_head * work.group + head,
                                           item % kVectors, all);
  }
}

}  // namespace decode
