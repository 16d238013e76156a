// The geometry of attend()'s launch, computed from sizes only, so it can be tested without a GPU.
// The lengths are on the device, so the plan uses the capacity. tests/test_decode_attention.py has
// a plan for each case below.
#pragma once
#include <stdint.h>

#include "common/divide.h"

// Tokens of a tile, which a warp processes at a time. row: bytes per token.
constexpr int tokens_of_tile(int row) { return row < 256 ? 32 : 16; }
constexpr int kMaxWarps = 8;    // per block
constexpr int kMaxSplits = 64;  // blocks per unit; a unit is one key head of one row of the batch
constexpr int kMaxCluster = 8;  // blocks that can join their parts in shared memory

// Bytes of shared memory: for the pipeline of one warp; for the epilogue of a block, at most and
// with up to 8 heads for a key head; and what CUDA keeps of each block's.
constexpr int kPipelineBytes = 25 * 1024;
constexpr int kMostEpilogueBytes = 12 * 1024, kEpilogueBytes = 6 * 1024, kReservedBytes = 1024;

struct Plan {
  int warps, splits;  // warps per block, blocks per unit
  bool is_cluster;    // a cluster joins the parts of its blocks; otherwise a second kernel does
};

// What a plan depends on. kb: of a unit's keys. cluster: the largest one for each unit of which all
// blocks run at once. most_warps: for whose pipelines a block has shared memory, 3 of 99 KB.
struct ProblemSize {
  int64_t units, kb;
  int row, processors, shared, cluster, most_warps;
};

// Would twice as many blocks fit?
inline bool has_room(const ProblemSize& x) { return 2 * x.cluster * x.units <= x.processors; }

// Longer units need more warps than a cluster can have. So do one or two units of small tokens,
// which take more arithmetic for each byte. The thresholds were measured on an H200.
inline bool fits_clusters(const ProblemSize& x) {
  if (x.cluster == 1) return false;
  const bool is_light = x.row >= 256 || (x.row >= 128 && x.units > 2);
  const bool is_enough = has_room(x) && is_light && x.most_warps == kMaxWarps;
  return 3 * x.units > x.processors || x.kb <= (is_enough ? 1024 : 512);
}

inline Plan plan_cluster(const ProblemSize& x) {
  const bool is_short = x.kb <= 128 && x.units >= 8;
  if (is_short && x.cluster == 8) return {8, 4, true};  // fewer blocks to join
  const bool is_long = x.kb > (x.row >= 256 ? 384 : 512);
  return {x.cluster == 2 || (is_long && has_room(x)) ? 8 : 4, x.cluster, true};
}

// At least one unit for each multiprocessor: one block per unit, a large one for long sequences.
inline Plan plan_many_units(const ProblemSize& x) {
  if (2 * x.units < 3 * x.processors)  // most multiprocessors would get one unit, some two
    return {x.kb > 100 ? 8 : 4, x.kb > 384 ? 2 : 1, false};
  const bool is_one_wave = x.units > 3 * x.processors && x.units <= 4 * x.processors;
  return {x.kb > 150 ? 8 : x.kb <= 100 && is_one_wave ? 2 : 4, 1, false};
}

// One wave of blocks, or two if one would leave multiprocessors idle.
inline Plan plan_few_units(const ProblemSize& x) {
  const bool is_half = x.units > x.processors / 2;
  if (is_half && x.kb <= 384 && x.most_warps > 4) return {8, 1, false};
  const int warps = x.most_warps < 4 ? x.most_warps : 4;
  const int at_once =  // blocks on a multiprocessor
      (x.shared + kReservedBytes) / (warps * kPipelineBytes + kEpilogueBytes + kReservedBytes);
  const int64_t blocks = int64_t{at_once < 1 ? 1 : at_once} * x.processors * (is_half ? 2 : 1);
  const int64_t splits = blocks / x.units;
  return {warps, static_cast<int>(splits < kMaxSplits ? splits : kMaxSplits), false};
}

// row: bytes per token. processors: multiprocessors of the GPU. shared: bytes of shared memory that
// one block can use.
inline Plan make_plan(int64_t units, int64_t capacity, int row, int processors, int shared,
                      bool can_cluster) {
  ProblemSize x = {units, capacity * row / 1024, row, processors, shared, kMaxCluster, kMaxWarps};
  while (x.cluster > 1 && x.cluster * units > processors) x.cluster /= 2;
  const int fitting = (shared - kMostEpilogueBytes) / kPipelineBytes;
  if (fitting < kMaxWarps) x.most_warps = fitting < 1 ? 1 : fitting;
  Plan plan;
  if (can_cluster && fits_clusters(x))
    plan = plan_cluster(x);
  else
    plan = units >= processors ? plan_many_units(x) : plan_few_units(x);
  if (plan.warps > x.most_warps) plan.warps = x.most_warps;
  if (plan.is_cluster) return plan;
  // More blocks would have no tile.
  const int64_t useful = divide_up(divide_up(capacity, tokens_of_tile(row)), plan.warps);
  if (plan.splits > useful) plan.splits = static_cast<int>(useful < 1 ? 1 : useful);
  return plan;
}
