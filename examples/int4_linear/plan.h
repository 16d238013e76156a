// Which kernel, which tile and how many blocks along K: the least time by a model, for any size.
// Plain C++, so that a test calls it without a GPU.
#pragma once
#include <map>
#include <mutex>
#include <tuple>

#include "common/divide.h"

struct Plan {
  int shape;    // of kShapes, or kDequantize: torch's matmul with the dequantized weight
  int splits;   // so many blocks share K in the last wave of tiles
  int unsplit;  // and none does in so many tiles before it
  int batch;    // rows of x that this plan is for; plan again for the others
  double us;    // of all rows, by the model; 0 where there is none
};

constexpr int kDequantize = -1, kMostSplits = 8;

// A block computes tiles of up to `rows` rows of W times `batch` rows of x, one after the other if
// it `is_persistent`. A step is a group of 128 columns for each of its warps along K.
struct BlockShape {
  int rows, batch, along_k, per_processor, most_splits;  // few_rows.cuh: splits are powers of 2
  bool is_wgmma, is_persistent;
  double step_us;  // with data at hand
};

// The times come from an H200, fitted to docs/results/h200-int4-plans.json. (sm_86, sm_89 and
// sm_120 have 99 KB of shared memory for a block, and 100 for a multiprocessor: there one block of
// the first shape runs on each, not two.)
constexpr BlockShape kListed[] = {
    {64, 8, 8, 2, 1, false, false, 1.26},  // 99 KB: the first one fits on any GPU from sm_80 on
    {64, 8, 8, 1, 8, false, true, 0.75},   {128, 8, 8, 1, 1, false, true, 1.54},
    {64, 16, 8, 1, 8, false, false, 1.16}, {128, 16, 4, 1, 4, false, true, 1.18},
    {64, 32, 8, 1, 4, false, false, 2.22}, {128, 32, 1, 1, 8, true, true, 0.40},
    {192, 32, 1, 1, 8, true, true, 0.52},  {256, 32, 1, 1, 8, true, true, 0.67},
    {64, 64, 1, 1, 8, true, true, 0.33},   {128, 64, 1, 1, 8, true, true, 0.49},
    {192, 64, 1, 1, 8, true, true, 0.66},  {256, 64, 1, 1, 8, true, true, 0.86},
};
constexpr int kListedCount = sizeof(kListed) / sizeof(kListed[0]);

// Tiles for more rows of x follow, so many that one is hardly wider than the batch needs: 128 rows
// of W by 72, 80 ... 256 rows of x, and 192 by 80, 96 ... 192 (wider ones have too many sums for
// the registers). The time of their step has a fixed part, and one that grows with the rows of x.
constexpr int kWideCount = 24 + 8, kShapeCount = kListedCount + kWideCount;
constexpr double kStepUs128 = 0.203, kStepUs128PerRow = 0.00418;
constexpr double kStepUs192 = 0.198, kStepUs192PerRow = 0.00647;

struct Shapes {
  BlockShape at[kShapeCount];
  constexpr const BlockShape& operator[](int i) const { return at[i]; }
};
constexpr Shapes all_shapes() {
  Shapes shapes = {};
  int count = 0;
  for (const BlockShape& shape : kListed) shapes.at[count++] = shape;
  for (int batch = 72; batch <= 256; batch += 8)
    shapes.at[count++] = {128, batch, 1, 1, 8, true, true, kStepUs128 + kStepUs128PerRow * batch};
  for (int batch = 80; batch <= 192; batch += 16)
    shapes.at[count++] = {192, batch, 1, 1, 8, true, true, kStepUs192 + kStepUs192PerRow * batch};
  return shapes;
}
constexpr Shapes kShapes = all_shapes();

constexpr double kStartUs = 0.81, kTileUs = 0.93;  // of a launch, of a tile
constexpr double kAgainUs = 2.5;                   // until the next block runs, without a loop
constexpr double kEmptyStep = 0.51;                // of a step's time, whatever a tile's rows
constexpr double kSecondUs = 1.36;                 // until the second of two launches runs
constexpr double kFewJoinUs = 0.51;                // where blocks of few_rows share K
constexpr double kJoinUs = 0.38;                   // of many_rows: of each of these blocks,
constexpr double kJoinUsPerSum = 0.000099;         // and of each of a tile's sums
constexpr double kBytesPerUs = 14.0e6;             // fitted: steps hide most of the memory's time
constexpr double kBytesPerRow = 64 + 2 + 1;        // codes, scale and zero of a group
constexpr double kHalfBytesPerRow = 2 * 128;       // the same weights in 16 bits

// Blocks that run at once, of each 132 multiprocessors, found by cudaOccupancyMaxActiveClusters: a
// cluster lies in one part of the chip, so some sizes of it leave some multiprocessors idle.
constexpr int kResident[kMostSplits + 1] = {0, 132, 132, 117, 120, 110, 102, 105, 120};
constexpr int kProcessorsOfH200 = 132;

// Blocks of a shape that run at once.
constexpr long long resident_blocks(const BlockShape& shape, int splits, int processors) {
  return static_cast<long long>(processors) * kResident[splits] / kProcessorsOfH200 / splits *
         splits * shape.per_processor;
}

// Tiles of W. few_rows.cuh deals strips of 16 rows out to them evenly, so there are as many tiles
// as keep all places for blocks busy in as few waves as possible.
constexpr long long tiles_of(const BlockShape& shape, int splits, int n, int batch,
                             int processors) {
  const long long least = divide_up(n, shape.rows), tiles_of_x = divide_up(batch, shape.batch);
  const long long clusters = resident_blocks(shape, splits, processors) / splits;
  if (shape.is_wgmma || clusters == 0) return least;
  const long long even = divide_up(least * tiles_of_x, clusters) * clusters / tiles_of_x;
  return even < least ? least : even < n / 16 ? even : n / 16;
}

// Microseconds of `tiles` tiles, each of so many `rows` of W, while `resident` blocks run at once.
inline double model_us(const BlockShape& shape, long long tiles, int rows, int splits, int k,
                       long long resident) {
  const long long blocks = tiles * splits, waves = blocks / resident,
                  rest = blocks - waves * resident;
  const double steps = static_cast<double>(divide_up(divide_up(k, 128), splits * shape.along_k));
  const double bytes = kBytesPerRow * shape.along_k * rows;
  const double step_us = shape.step_us * (kEmptyStep + (1 - kEmptyStep) * rows / shape.rows);
  const auto wave = [&](long long running) {
    return steps * (step_us + static_cast<double>(running) * bytes / kBytesPerUs) + kTileUs;
  };
  double join = 0;
  if (splits > 1 && shape.is_wgmma)
    join = kJoinUs * splits + kJoinUsPerSum * shape.rows * shape.batch;
  else if (splits > 1)
    join = kFewJoinUs;
  const double again =
      shape.is_persistent ? 0 : kAgainUs * static_cast<double>(waves - (rest == 0));
  return kStartUs + static_cast<double>(waves) * wave(resident) + (rest > 0 ? wave(rest) : 0) +
         again + join;
}

// The best for all rows of x at once.
inline Plan plan_one(int n, int k, int batch, int processors) {
  Plan best = {kDequantize, 1, 0, batch, 0};
  const auto consider = [&](const Plan& plan) {
    if (best.shape < 0 || plan.us < best.us) best = plan;
  };
  for (int i = 0; i < kShapeCount; ++i) {
    const BlockShape& shape = kShapes[i];
    // A tile of twice the rows that there are mostly computes zeros.
    if (shape.batch >= 2 * batch && shape.batch > 8) continue;
    const long long tiles_of_x = divide_up(batch, shape.batch);
    const long long alone = resident_blocks(shape, 1, processors);
    for (int splits = 1; splits <= shape.most_splits; splits += shape.is_wgmma ? 1 : splits) {
      const long long resident = resident_blocks(shape, splits, processors);
      if (splits > divide_up(k, 128) || resident == 0) break;
      const long long tiles_of_w = tiles_of(shape, splits, n, batch, processors);
      const long long tiles = tiles_of_w * tiles_of_x;
      const int rows =
          shape.is_wgmma ? shape.rows : static_cast<int>(divide_up(n / 16, tiles_of_w)) * 16;
      // Blocks share K only while all run at once.
      if (splits == 1 || tiles * splits <= resident)
        consider({i, splits, 0, batch, model_us(shape, tiles, rows, splits, k, resident)});
      // Or only the tiles of the last wave, in a second launch.
      if (!shape.is_wgmma || splits == 1 || tiles <= alone) continue;
      const long long rest = tiles % alone, unsplit = tiles - rest;
      if (rest == 0 || rest * splits > resident) continue;
      const double first = model_us(shape, unsplit, rows, 1, k, alone);
      const double second = model_us(shape, rest, rows, splits, k, resident);
      consider({i, splits, static_cast<int>(unsplit), batch, first + kSecondUs + second});
    }
  }
  return best;
}

// Without wgmma: the first shape reads the codes again for every 8 rows of x. torch's matmul comes
// after a dequantization, which reads them once and writes weights of 16 bits, for it to read. So
// it moves fewer bytes from 65 rows on. (Nothing was measured on such GPUs.)
constexpr bool is_dequantized(int batch) {
  const int passes = divide_up(batch, kShapes[0].batch);
  return passes * kBytesPerRow > kBytesPerRow + 2 * kHalfBytesPerRow;
}

// All rows of x at once, or the first of two plans: full tiles and then a smaller one for the last
// rows may be cheaper than tiles of one size. has_wgmma: the GPU is an H100 or H200 and the code
// was compiled for sm_90a.
inline Plan make_plan(int n, int k, int batch, int processors, bool has_wgmma) {
  if (!has_wgmma) return {is_dequantized(batch) ? kDequantize : 0, 1, 0, batch, 0};
  Plan best = plan_one(n, k, batch, processors);
  for (int tile = 64, before = 0; tile <= 256; tile += 64) {
    const int first = (batch - 1) / tile * tile;
    if (first == 0 || first == before) continue;
    before = first;
    Plan one = plan_one(n, k, first, processors);
    if (one.us < best.us) one.us += plan_one(n, k, batch - first, processors).us;
    if (one.us < best.us) best = one;
  }
  return best;
}

// The same, worked out once for each size: with hundreds of rows make_plan takes a CPU some 10
// microseconds, which a GPU would wait for. A plan has 24 bytes, so all are kept. (static: the
// linker would let two libraries share one map, and their copies of this file may differ.)
static inline Plan kept_plan(int n, int k, int batch, int processors, bool has_wgmma) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int, int, int, bool>, Plan> plans;
  const std::tuple<int, int, int, int, bool> size = {n, k, batch, processors, has_wgmma};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = plans.find(size);
  if (known != plans.end()) return known->second;
  return plans[size] = make_plan(n, k, batch, processors, has_wgmma);
}
