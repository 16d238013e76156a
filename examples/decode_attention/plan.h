// The geometry of attend()'s launch, computed from sizes only, so it can be tested without a GPU.
// The lengths are on the device, so the plan uses the capacity.
#pragma once
#include <stdint.h>

#include "common/divide.h"

// Tokens that a warp processes at a time. row: bytes per token.
constexpr int tile_of(int row) { return row < 256 ? 32 : 16; }
constexpr int kMaxWarps = 8;      // per block
constexpr int kMaxSplits = 64;    // blocks per unit; a unit is one key head of one row of the batch
constexpr int kMaxCluster = 8;    // blocks that can join their parts in shared memory
constexpr int kRing = 25 * 1024;  // bytes of shared memory for the copies of one warp

struct Plan {
  int warps, splits;  // warps per block, blocks per unit
  bool is_cluster;    // a cluster joins the parts of its blocks; otherwise a second kernel does
};

// row: bytes per token. processors: multiprocessors of the GPU. shared: bytes of shared memory that
// one block can use. The thresholds were measured on an H200.
inline Plan make_plan(int64_t units, int64_t capacity, int row, int processors, int shared,
                      bool can_cluster) {
  const int64_t tiles = divide_up(capacity, tile_of(row)), kb = capacity * row / 1024;
  int64_t splits = 1, cluster = kMaxCluster;
  while (cluster > 1 && cluster * units > processors) cluster /= 2;  // all blocks run at once
  const int fitting = (shared - 12 * 1024) / kRing;  // warps of a block: 3 on a GPU with 99 KB
  const int most = fitting < 1 ? 1 : fitting < kMaxWarps ? fitting : kMaxWarps;
  Plan plan = {4, 1, can_cluster && cluster > 1 && (3 * units > processors || kb <= 512)};
  if (plan.is_cluster && cluster == 8 && units >= 8 && kb <= 128) {  // fewer blocks to join
    splits = 4;
    plan.warps = 8;
  } else if (plan.is_cluster) {
    splits = cluster;
    if (cluster == 2 || (kb > 384 && row >= 256 && 2 * cluster * units <= processors))
      plan.warps = 8;
  } else if (units >= processors) {  // one block per unit: large ones for long rows, one at a time
    const bool is_uneven = 2 * units < 3 * processors;  // most multiprocessors would get one unit
    if (kb > (is_uneven ? 100 : 150)) plan.warps = 8;
    if (kb <= 100 && units > 3 * processors && units <= 4 * processors) plan.warps = 2;
    if (is_uneven && kb > 384) splits = 2;
  } else if (units > processors / 2 && kb <= 384 && most > plan.warps) {
    plan.warps = 8;
  } else {  // one wave of blocks, or two if one would leave multiprocessors idle
    if (plan.warps > most) plan.warps = most;
    const int at_once = (shared + 1024) / (plan.warps * kRing + 7 * 1024);
    const int waves = units > processors / 2 ? 2 : 1;
    splits = (at_once < 1 ? 1 : at_once) * processors * waves / units;
  }
  if (plan.warps > most) plan.warps = most;
  const int64_t useful = divide_up(tiles, plan.warps);  // more blocks would have no tile
  if (!plan.is_cluster && splits > useful) splits = useful < 1 ? 1 : useful;
  plan.splits = static_cast<int>(splits < kMaxSplits ? splits : kMaxSplits);
  return plan;
}
