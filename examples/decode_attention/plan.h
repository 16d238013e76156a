// How attention for one token is shared out: a function of sizes only, so that it can be tested
// without a GPU. Lengths live on the device, so the capacity has to stand for them.
#pragma once
#include <stdint.h>

constexpr int kTile = 16;         // tokens that a warp takes at a time
constexpr int kMaxWarps = 8;      // in a block
constexpr int kMaxSplits = 64;    // blocks for one unit: a key head of one row of the batch
constexpr int kMaxCluster = 8;    // blocks that can join their parts in shared memory
constexpr int kRing = 24 * 1024;  // bytes of shared memory in which a warp's copies arrive

struct Plan {
  int warps, splits;
  bool is_cluster;  // a cluster joins the parts of its blocks; otherwise a second kernel does
};

// processors: the GPU's multiprocessors. shared: bytes of shared memory that a block can have. The
// choices come from an H200.
inline Plan make_plan(int64_t units, int64_t capacity, bool is_int8, int processors, int shared,
                      bool can_cluster) {
  const int64_t tiles = (capacity + kTile - 1) / kTile;
  Plan plan = {4, 1, false};
  if (units >= processors) {
    // Several blocks on a multiprocessor: one starts while another ends.
  } else if (units > processors / 2) {
    plan.warps = kMaxWarps;
  } else if (units > processors / 3) {
    plan = {kMaxWarps, 2, can_cluster};
  } else if (can_cluster && units <= processors / 16 && capacity <= 4096) {
    if (is_int8 && tiles > 96) plan.warps = kMaxWarps;
    plan.splits = kMaxCluster;
    plan.is_cluster = true;
  } else {
    const int at_once = (shared + 1024) / (plan.warps * kRing + 7 * 1024);
    const int64_t splits = (at_once < 1 ? 1 : at_once) * processors / units;
    plan.splits = static_cast<int>(splits < kMaxSplits ? splits : kMaxSplits);
  }
  const int fitting = (shared - 12 * 1024) / kRing;
  if (plan.warps > fitting) plan.warps = fitting < 1 ? 1 : fitting;
  const int64_t useful = (tiles + plan.warps - 1) / plan.warps;  // more blocks would have no tile
  if (plan.splits > useful) plan.splits = useful < 1 ? 1 : static_cast<int>(useful);
  if (plan.splits == 1) plan.is_cluster = false;
  return plan;
}
