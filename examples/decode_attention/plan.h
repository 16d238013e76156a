// How attention for one token is shared out: a function of sizes only, so that it can be tested
// without a GPU. Lengths live on the device, so the capacity has to stand for them.
#pragma once
#include <stdint.h>

constexpr int kTile = 16;         // tokens that a warp takes at a time
constexpr int kMaxWarps = 8;      // in a block
constexpr int kMaxSplits = 64;    // blocks for one unit: a key head of one row of the batch
constexpr int kMaxCluster = 8;    // blocks that can join their parts in shared memory
constexpr int kRing = 25 * 1024;  // bytes of shared memory in which a warp's copies arrive

struct Plan {
  int warps, splits;
  bool is_cluster;  // a cluster joins the parts of its blocks; otherwise a second kernel does
};

// row: bytes of a token. processors: the GPU's multiprocessors. shared: bytes of shared memory that
// a block can have. The choices come from an H200.
inline Plan make_plan(int64_t units, int64_t capacity, int row, int processors, int shared,
                      bool can_cluster) {
  const int64_t tiles = (capacity + kTile - 1) / kTile, kb = capacity * row / 1024;
  int64_t splits = 1, cluster = kMaxCluster;
  while (cluster > 1 && cluster * units > processors) cluster /= 2;
  Plan plan = {4, 1, can_cluster && cluster > 1 && (3 * units > processors || kb <= 512)};
  if (plan.is_cluster) {
    if (cluster == 2 || (kb > 384 && 2 * cluster * units <= processors)) plan.warps = 8;
    splits = cluster;
  } else if (units >= processors) {  // a block for each unit; of two warps, more fit at once
    const bool is_small = row < 256;
    if (is_small ? units >= 2 * processors && units <= 4 * processors : 2 * units < 3 * processors)
      plan.warps = 2;
  } else if (units > processors / 2 && kb <= 384) {
    plan.warps = 8;
  } else {  // one wave of blocks, or two where one would leave multiprocessors without work
    const int at_once = (shared + 1024) / (plan.warps * kRing + 7 * 1024);
    splits = (at_once < 1 ? 1 : at_once) * processors * (units > processors / 2 ? 2 : 1) / units;
  }
  const int fitting = (shared - 12 * 1024) / kRing;
  if (plan.warps > fitting) plan.warps = fitting < 1 ? 1 : fitting;
  const int64_t useful = (tiles + plan.warps - 1) / plan.warps;  // more would have no tile
  if (!plan.is_cluster && splits > useful) splits = useful < 1 ? 1 : useful;
  plan.splits = static_cast<int>(splits < kMaxSplits ? splits : kMaxSplits);
  return plan;
}
