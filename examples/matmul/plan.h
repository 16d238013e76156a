// The plan of rung 7: which tile, how many blocks. Plain C++, which tests call without a GPU.
#pragma once
#include <math.h>
#include <stdint.h>

#include "common/divide.h"

constexpr int kTileK = 64;   // columns of A and B per tile: 128 bytes, one period of the swizzle
constexpr int kTileM = 128;  // rows of A per tile: 64 for each of two warpgroups

// A tile of the result has kTileM rows and `tile_n` columns. The blocks of a cluster take tiles
// that lie below each other. cost: the time of a tile's product per column, relative to the widest
// tile's, measured: narrow tiles read more from shared memory for each product.
struct Shape {
  int tile_n, cluster;
  float cost;
};
constexpr Shape kShapes[] = {{256, 2, 1.f},   {192, 2, 1.f},   {128, 2, 1.02f},
                             {192, 1, 1.03f}, {128, 1, 1.08f}, {64, 1, 1.55f}};
constexpr int kShapeCount = sizeof(kShapes) / sizeof(kShapes[0]);

// tiles: how many a cluster's blocks take together count as one. They are dealt to the clusters in
// turn: cluster i of c takes tiles i, i + c, i + 2 c, ...
struct Plan {
  int shape, blocks, tiles;
};

// The fastest of the first `count` shapes. Time goes in waves: all multiprocessors work on a tile
// each, until the last wave has ended.
inline Plan make_plan(int m, int n, int k, int processors, int count) {
  Plan best = {};
  float least = INFINITY;
  for (int i = 0; i < count; ++i) {
    const auto [tile_n, cluster, cost] = kShapes[i];
    const int64_t wide = divide_up(int64_t{n}, tile_n);
    const int64_t tiles = divide_up(int64_t{m}, kTileM * cluster) * wide;
    const int64_t waves = divide_up(tiles, processors / cluster);
    float step = cost * tile_n;
    // Where rows do not begin at multiples of 128 bytes, most rows of a tile lie in two lines of
    // L2, and a tile's loads may take longer than its product.
    if (k % kTileK != 0) step = fmaxf(step, kTileM + tile_n / cluster);
    const float time = waves * (step * k + 256 * 128.f);  // and the start and the end of a tile
    if (time < least) {
      least = time;
      // No more blocks than this number of waves needs: idle ones would only take power.
      best = {i, int(divide_up(tiles, waves)) * cluster, int(tiles)};
    }
  }
  return best;
}
