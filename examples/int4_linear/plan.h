// Which kernel, which tile and how many blocks along K: the least time by a model, for any size.
// Plain C++, so that a test calls it without a GPU.
#pragma once

struct Plan {
  int shape;    // of kShapes, or kDequantize: torch's matmul with the dequantized weight
  int cluster;  // so many blocks share K
  int batch;    // rows of x that this launch is for; plan again for the others
  double us;    // by the model; 0 where there is none
};

constexpr int kDequantize = -1, kMostClusters = 8;

// A block computes a tile of `rows` of W times `batch` rows of x. A step is a group of 128 columns
// for each of its warps along K. It lasts step_us plus the time in which memory brings what all
// blocks read in a step; tile_us is the rest of a block's life.
struct BlockShape {
  int rows, batch, along_k, per_processor;
  bool is_wgmma;
  double step_us, tile_us;
};

// Fitted to 1,100 times of an H200, docs/results/h200-int4-plans.json.
constexpr BlockShape kShapes[] = {
    {64, 8, 8, 2, false, 1.00, 1.03},    {64, 8, 16, 1, false, 1.43, 0.03},
    {128, 16, 4, 1, false, 0.99, 0.90},  {64, 16, 8, 1, false, 0.97, 0.77},
    {128, 32, 4, 1, false, 1.74, 1.17},  {192, 32, 1, 1, true, 0.574, 0.42},
    {128, 64, 1, 1, true, 0.469, 1.28},  {192, 64, 1, 1, true, 0.630, 0.78},
    {128, 128, 1, 1, true, 0.613, 1.93}, {192, 128, 1, 1, true, 0.781, 1.81},
    {128, 192, 1, 1, true, 0.848, 2.00}, {128, 256, 1, 1, true, 1.132, 2.92},
};
constexpr double kStartUs = 1.89, kJoinUs = 0.16, kJoinUsPerSum = 1.33e-4;
constexpr double kBytesPerUs = 4.7e6;        // of memory
constexpr double kBytesPerRow = 64 + 2 + 1;  // codes, scale and zero of a group

// Blocks that run at once, of each 132. A cluster lies in one part of the chip, which has 16 or 18
// multiprocessors, so some sizes of it leave some idle.
constexpr int kResident[kMostClusters + 1] = {0, 132, 132, 117, 120, 110, 102, 105, 120};

constexpr long long divide_up(long long a, long long b) { return (a + b - 1) / b; }

// Microseconds of `n` x `k` weights times `batch` rows; below 0: not a good idea in any case.
inline double model_us(const BlockShape& shape, int cluster, int n, int k, int batch,
                       int processors) {
  const long long tiles = divide_up(n, shape.rows) * divide_up(batch, shape.batch);
  const long long steps = divide_up(divide_up(k, 128), cluster * shape.along_k);
  const long long slots = static_cast<long long>(processors) * kResident[cluster] / 132 / cluster *
                          cluster * shape.per_processor;
  const long long blocks = tiles * cluster, waves = slots > 0 ? blocks / slots : 0;
  if (slots == 0 || (cluster > 1 && blocks > slots)) return -1;  // K is long enough without
  const double bytes = kBytesPerRow * shape.rows * shape.along_k;
  const auto wave = [&](long long running) {
    return steps * (shape.step_us + running * bytes / kBytesPerUs) + shape.tile_us;
  };
  const long long rest = blocks - waves * slots;
  const double join = cluster > 1 ? kJoinUs + kJoinUsPerSum * shape.rows * shape.batch : 0;
  return kStartUs + waves * wave(slots) + (rest > 0 ? wave(rest) : 0) + join;
}

// The best single launch.
inline Plan plan_one(int n, int k, int batch, int processors) {
  Plan best = {kDequantize, 1, batch, 0};
  for (int i = 0; i < static_cast<int>(sizeof(kShapes) / sizeof(kShapes[0])); ++i) {
    // A tile of twice the rows that there are mostly computes zeros.
    if (kShapes[i].batch >= 2 * batch && kShapes[i].batch > 16) continue;
    for (int cluster = 1; cluster <= kMostClusters; ++cluster) {
      const double us = model_us(kShapes[i], cluster, n, k, batch, processors);
      if (us >= 0 && (best.shape < 0 || us < best.us)) best = {i, cluster, batch, us};
    }
  }
  return best;
}

// One launch, or the first of two: a tile of 128 rows and one of 8 are cheaper than two of 128.
// has_wgmma: the GPU is an H100 or H200 and the code was compiled for sm_90a. Others get the first
// shape, which all can run: nothing was measured on them.
inline Plan make_plan(int n, int k, int batch, int processors, bool has_wgmma) {
  if (!has_wgmma) return {batch > 128 ? kDequantize : 0, 1, batch, 0};
  Plan best = plan_one(n, k, batch, processors);
  for (int tile = 64; tile <= 256; tile += 64) {
    const int first = (batch - 1) / tile * tile;
    if (first == 0) continue;
    const Plan one = plan_one(n, k, first, processors);
    const double us = one.us + plan_one(n, k, batch - first, processors).us;
    if (us < best.us) best = {one.shape, one.cluster, first, us};
  }
  return best;
}
