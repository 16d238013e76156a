// The plan of rung 7: which tile, how many blocks. Plain C++, which tests call without a GPU.
#pragma once
#include <math.h>
#include <stdint.h>

#include "common/divide.h"

constexpr int kTileK = 64;   // columns of A and B per tile: 128 bytes, one period of the swizzle
constexpr int kTileM = 128;  // rows of the left factor per tile: 64 for each of two warpgroups

// Rung 7 has tiles of kTileM rows of B and kWidths[i] rows of A.
constexpr int kWidths[] = {16, 32, 64, 96, 104, 128, 160, 192, 208, 224, 232, 256};
constexpr int kWidthCount = sizeof(kWidths) / sizeof(kWidths[0]);

// Clusters that run at the same time on the 132 multiprocessors of a H200, by their blocks
// (cudaOccupancyMaxActiveClusters). A cluster lies in one part of the chip, and where its size does
// not divide that part's multiprocessors, some stay idle.
constexpr int kPlaces[] = {0, 132, 66, 39, 30, 22, 17, 15, 15};
constexpr int kProcessorsOfH200 = 132, kMostBlocks = 8;

// Blocks of a cluster: cluster_m take tiles that lie below each other in C^T, and share a tile of
// A; cluster_n take tiles side by side, and share a tile of B (not both are 2); split blocks take a
// part of K each, of so many steps. There are high x wide tiles for clusters, which are dealt out
// in turn: cluster i of c takes tiles i, i + c, ...
struct Plan {
  int width, cluster_m, cluster_n, split, steps, clusters, high, wide;
};

// Microseconds of a plan, by constants that were fitted to measurements on a H200. Time goes in
// waves: all multiprocessors work on a tile each, until the last wave has ended.
inline float model_us(const Plan& plan, int m, int n, int k, int64_t waves) {
  const int width = kWidths[plan.width];
  // For each column of K: the products (739 TFLOP/s of the GPU, if a tile had endless rows of A),
  // or the copies of kTileM + width numbers, whichever take longer. Where blocks share a tile,
  // fewer come from L2, and the products are a little faster.
  const float from_l2 = float(kTileM) / plan.cluster_n + float(width) / plan.cluster_m;
  float product = 45.7e-6f * (width + 11) * (0.92f + 0.12f * from_l2 / (kTileM + width));
  if (width % 128 != 0) product *= 1.025f;
  const float column = fmaxf(product, 24e-6f * (kTileM + width));
  const float tiles = waves * (column * plan.steps * kTileK + 2);  // 2: start and end of a tile
  // Or the bytes: from memory at 3.8 TB/s, and B for each further column of tiles from L2 at 8.
  const float b_bytes = 2.f * n * k, others = 2.f * m * k + 2.f * m * n;
  const float moves = (b_bytes + others) / 3.8e6f + (plan.wide - 1) * b_bytes / 8e6f;
  float us = fmaxf(tiles, moves + 2);
  if (plan.cluster_m * plan.cluster_n * plan.split > 1) us += 0.3f;  // a cluster's start
  if (plan.split > 1) us += 0.7f + 0.024f * width;                   // the parts' sum
  return us;
}

constexpr struct Pair {
  int cluster_m, cluster_n;
} kPairs[] = {{1, 1}, {1, 2}, {2, 1}};

// The fastest plan.
inline Plan make_plan(int m, int n, int k, int processors) {
  Plan best = {};
  float least = INFINITY;
  const int steps = divide_up(k, kTileK);
  for (int width = 0; width < kWidthCount; ++width) {
    for (const auto [cluster_m, cluster_n] : kPairs) {
      const int high = divide_up(int64_t{n}, kTileM * cluster_m);
      const int wide = divide_up(int64_t{m}, kWidths[width] * cluster_n);
      const int64_t tiles = int64_t{high} * wide;
      for (int split = 1; split <= 4 && split <= steps; ++split) {
        const int size = cluster_m * cluster_n * split;
        const int64_t places = int64_t{processors} * kPlaces[size] / kProcessorsOfH200;
        if (places == 0 || (split > 1 && tiles > places)) break;  // each cluster has one tile then
        const int64_t waves = divide_up(tiles, places);
        // No more clusters than this number of waves needs: idle ones would only take power.
        const int clusters = divide_up(tiles, waves), part = divide_up(steps, split);
        if ((split - 1) * part >= steps) continue;  // the last part would be empty
        const Plan plan = {width, cluster_m, cluster_n, split, part, clusters, high, wide};
        const float us = model_us(plan, m, n, k, waves);
        if (us < least) {
          least = us;
          best = plan;
        }
      }
    }
  }
  return best;
}
