// How attention for one token is shared out: a function of sizes only, so that it can be tested
// without a GPU. Lengths live on the device, so the capacity has to stand for them.
#pragma once
#include <stdint.h>

constexpr int kTile = 16;         // tokens that a warp takes at a time
constexpr int kMaxWarps = 8;      // in a block
constexpr int kMaxSplits = 64;    // blocks for one key head of one row of the batch
constexpr int kMaxCluster = 8;    // blocks that can join their parts in shared memory
constexpr int kRing = 24 * 1024;  // bytes of shared memory in which a warp's copies arrive

struct Plan {
  int warps, splits;
  bool is_cluster;  // a cluster joins the parts of its blocks; otherwise a second kernel does
};

// units: key heads of all rows. processors: the GPU's multiprocessors. shared: bytes of shared
// memory that a block can have. The choices come from an H200.
inline Plan make_plan(int64_t units, int64_t capacity, int processors, int shared,
                      bool can_cluster) {
  const int fitting = (shared - 12 * 1024) / kRing;
  Plan plan = {fitting < kMaxWarps ? (fitting < 1 ? 1 : fitting) : kMaxWarps, 1, false};
  const int64_t tiles = (capacity + kTile - 1) / kTile;
  const int64_t useful = (tiles + plan.warps - 1) / plan.warps;  // more blocks would have no tile
  int64_t splits = (processors + units - 1) / units;
  if (splits > useful) splits = useful;
  if (splits > kMaxSplits) splits = kMaxSplits;
  plan.splits = splits < 1 ? 1 : static_cast<int>(splits);
  plan.is_cluster = can_cluster && plan.splits > 1 && plan.splits <= kMaxCluster;
  return plan;
}
