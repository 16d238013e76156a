// Which kernel, how many threads, how many blocks, from what the GPU has room for. Plain C++, so
// that a test calls it without a GPU.
#pragma once
#include <stdint.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <optional>

#include "add_rms_norm.h"
#include "common/divide.h"

constexpr int kMostThreads = 512;  // in a block

// What a GPU can do with this library, for one dtype.
struct Gpu {
  int multiprocessors = 0;
  int clusters[5] = {};  // how many clusters of 1, 2, 4, 8, 16 blocks run at the same time
  // How many blocks of a kernel one multiprocessor runs at the same time, by the block's warps.
  int forward_tiles[kMostThreads / 32 + 1] = {}, backward_tiles[kMostThreads / 32 + 1] = {};
};

// The kernels of a pass: one for each kind of rows.
enum class Kernel {
  kAnyWidth,     // any width, address and dtype; reads a row twice
  kInRegisters,  // a row fits the registers of a block or a cluster, so it is read once
  kTiles,        // short rows, mostly such as end within a vector: several as one piece
};

// The launch of a kernel.
struct Grid {
  int64_t blocks_x = 0, blocks_y = 1;  // kInRegisters: blocks_y blocks share a row, as a cluster
  int threads_x = kMostThreads, threads_y = 1;  // of a block
  bool is_cluster = false;
};

struct Plan {
  Kernel kernel = Kernel::kAnyWidth;
  int tile_rows = 0;           // of kTiles
  int vectors_per_thread = 0;  // of kInRegisters
  bool is_whole = false;       // each row begins and ends where a vector of 16 bytes does
  Grid grid = {};              // in a backward pass each of blocks_x leaves a row of sums
};

// Rows in vectors of 16 bytes.
struct Rows {
  int64_t count, width;
  int in_vector;    // elements
  int64_t vectors;  // that a row needs, wherever it begins; 0: it cannot stay in registers
  bool are_whole;   // each begins and ends where a vector does
};

template <typename Pass>
Rows rows_of(const Pass& x, std::initializer_list<const void*> pointers) {
  const int size = x.dtype == RMS_FLOAT64 ? 8 : x.dtype == RMS_FLOAT32 ? 4 : 2;
  uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  const bool are_aligned = bits % 16 == 0;
  bits |= reinterpret_cast<uintptr_t>(x.weight) | (x.width * size);
  Rows rows = {x.rows, x.width, 16 / size, 0, bits % 16 == 0};
  const int64_t more = rows.are_whole ? 0 : rows.in_vector - 1;
  if (are_aligned && size < 8) rows.vectors = divide_up(x.width + more, rows.in_vector);
  return rows;
}

// Tiles of as many rows as fit wanted_threads. Where rows begin within a vector repeats every
// `period` rows; so a tile is a multiple of that. No tiles if a period has more than most_vectors,
// or if they would leave half of the multiprocessors without one. A multiprocessor gets as many
// blocks as it runs at the same time, and no more than most_threads.
inline std::optional<Plan> by_tiles(const Rows& rows, const Gpu& gpu, int most_vectors,
                                    int wanted_threads, const int* blocks_by_warps,
                                    int most_threads) {
  const int64_t period = rows.in_vector / std::gcd(rows.width, int64_t(rows.in_vector));
  const int64_t vectors = period * rows.width / rows.in_vector;
  if (rows.vectors == 0 || rows.width < rows.in_vector || vectors > most_vectors) return {};
  const int multiprocessors = gpu.multiprocessors;
  const int64_t fitting = std::max<int64_t>(wanted_threads / vectors, 1);
  const int64_t wanted = std::max<int64_t>(divide_up(rows.count, period * multiprocessors), 1);
  const int64_t periods = std::min(fitting, wanted), tile_rows = periods * period;
  if (2 * rows.count < tile_rows * multiprocessors) return {};
  const int threads = 32 * divide_up(periods * vectors, 32);
  int lanes = 32;  // that add up a row: the shares of two vectors each, or more
  while (lanes > 1 && 2 * lanes > rows.vectors) lanes /= 2;
  const int at_once = std::min(blocks_by_warps[threads / 32], most_threads / threads);
  const int64_t resident = static_cast<int64_t>(multiprocessors) * std::max(at_once, 1);
  const int64_t blocks = std::min(divide_up(rows.count, tile_rows), resident);
  const Grid grid = {blocks, 1, lanes, threads / lanes};
  return Plan{Kernel::kTiles, static_cast<int>(tile_rows), 0, rows.are_whole, grid};
}

// A row over the smallest cluster in which a block needs at most wanted_threads, else the largest
// one. A block with all of a row takes more rows, for up to most_threads. A row that does not fit
// has a block to itself, in the kernel for any width.
inline Plan by_rows(const Rows& rows, const Gpu& gpu, int per_thread, int wanted_threads,
                    int most_threads) {
  int threads = 0, blocks = 0;
  for (int k = 0; k < 5 && rows.vectors > 0 && gpu.clusters[k] > 0; ++k) {
    const auto needed = 32 * divide_up(rows.vectors, int64_t(32 * per_thread) << k);
    if (needed <= kMostThreads) {
      threads = static_cast<int>(needed);
      blocks = 1 << k;
    }
    if (needed <= wanted_threads) break;
  }
  if (blocks == 0) return {Kernel::kAnyWidth, 0, 0, rows.are_whole, {rows.count}};
  while (threads / 2 * per_thread >= rows.vectors) threads /= 2;  // below a warp
  const int in_block = blocks == 1 ? std::max(most_threads / threads, 1) : 1;
  const Grid grid = {divide_up(rows.count, in_block), blocks, threads, in_block, blocks > 1};
  return {Kernel::kInRegisters, 0, per_thread, rows.are_whole, grid};
}

// One vector per thread is best up to 512 threads; four in blocks of 128 threads for wide rows.
// Tiles get up to 1536 threads per multiprocessor: forward_tiles has the registers for that on
// sm_90.
inline Plan make_plan(const RmsForward& x, const Gpu& gpu) {
  const Rows rows = rows_of(x, {x.y, x.s, x.a, x.b});
  if (!rows.are_whole) {
    const auto tiles = by_tiles(rows, gpu, kMostThreads, 384, gpu.forward_tiles, 3 * kMostThreads);
    if (tiles) return *tiles;
  }
  if (rows.vectors > 2 * kMostThreads) return by_rows(rows, gpu, 4, 128, 128);
  return by_rows(rows, gpu, rows.vectors > kMostThreads ? 2 : 1, kMostThreads, 128);
}

// 512 threads per block, two vectors per thread, one block per multiprocessor: that has the bytes
// in flight that the memory wants, with the fewest partial sums. With few rows, each has a block of
// its own and twice the threads.
inline Plan make_plan(const RmsBackward& x, const Gpu& gpu) {
  const Rows rows = rows_of(x, {x.dx, x.dy, x.ds, x.s});
  if (!rows.are_whole || rows.vectors <= 8) {
    const auto tiles = by_tiles(rows, gpu, 384, kMostThreads, gpu.backward_tiles, 2 * kMostThreads);
    if (tiles) return *tiles;
  }
  Plan found = by_rows(rows, gpu, 1, kMostThreads, 32);
  const bool is_in_registers = found.kernel == Kernel::kInRegisters;
  if (x.rows > gpu.multiprocessors || !is_in_registers || found.grid.blocks_y > 8)
    found = by_rows(rows, gpu, 2, kMostThreads, kMostThreads);
  Grid& grid = found.grid;
  if (found.kernel == Kernel::kInRegisters) {
    grid.blocks_x = std::min(grid.blocks_x, int64_t(gpu.clusters[__builtin_ctz(grid.blocks_y)]));
    // Every eighth row begins at the same place within a vector: a block's rows are so far apart.
    if (!rows.are_whole && grid.blocks_x < x.rows)
      grid.blocks_x = std::max<int64_t>(grid.blocks_x / 8 * 8, 8);
    return found;
  }
  const int in_vectors = kMostThreads * rows.in_vector;  // columns of a block that loads vectors
  const int64_t parts = divide_up(4 * gpu.multiprocessors, divide_up(x.width, in_vectors));
  grid.blocks_x = std::min(x.rows, parts);
  grid.blocks_y = divide_up(x.width, rows.are_whole ? in_vectors : kMostThreads);
  return found;
}
