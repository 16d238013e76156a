// Which kernel, how many threads, how many blocks, from what the GPU has room for. Plain C++, so
// that a test calls it without a GPU.
#pragma once
#include <stdint.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>

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

struct Threads {
  int x = kMostThreads, y = 1;
};

// Which kernel a pass takes, and how it starts it.
struct Plan {
  int tile_rows = 0;           // > 0: by tiles
  int vectors_per_thread = 0;  // > 0: by rows in registers. Else by a kernel for any width
  int64_t blocks_x = 0;        // in a backward pass each leaves a row of sums
  int64_t blocks_y = 1;        // of rows in registers: a cluster
  Threads threads = {};        // of a block
  bool is_whole = false;       // each row begins and ends where a vector of 16 bytes does
};

// Rows in vectors of 16 bytes.
struct Rows {
  int64_t count, width;
  int in_vector;    // elements
  int64_t vectors;  // that a row needs, wherever it begins; 0: they stay in no registers
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

// Tiles of as many rows as fit wanted_threads, if there are enough rows, and if the fewest that
// together end where a vector does, a unit, have at most most_vectors. A multiprocessor gets as
// many blocks as it runs at the same time, and no more than most_threads.
inline Plan by_tiles(const Rows& rows, const Gpu& gpu, int most_vectors, int wanted_threads,
                     const int* blocks_by_warps, int most_threads) {
  const int64_t unit = rows.in_vector / std::gcd(rows.width, int64_t(rows.in_vector));
  const int64_t vectors = unit * rows.width / rows.in_vector;
  if (rows.vectors == 0 || rows.width < rows.in_vector || vectors > most_vectors) return {};
  const int multiprocessors = gpu.multiprocessors;
  const int64_t fitting = std::max<int64_t>(wanted_threads / vectors, 1);
  const int64_t wanted = std::max<int64_t>(divide_up(rows.count, unit * multiprocessors), 1);
  const int64_t units = std::min(fitting, wanted), tile_rows = units * unit;
  if (2 * rows.count < tile_rows * multiprocessors) return {};
  const int threads = 32 * divide_up(units * vectors, 32);
  int lanes = 32;  // that add up a row: the shares of two vectors each, or more
  while (lanes > 1 && 2 * lanes > rows.vectors) lanes /= 2;
  const int at_once = std::min(blocks_by_warps[threads / 32], most_threads / threads);
  const int64_t resident = static_cast<int64_t>(multiprocessors) * std::max(at_once, 1);
  const int64_t blocks = std::min(divide_up(rows.count, tile_rows), resident);
  return {static_cast<int>(tile_rows), 0, blocks, 1, {lanes, threads / lanes}, rows.are_whole};
}

// A row over the smallest cluster in which a block needs at most wanted_threads, else the largest
// one. A block with all of a row takes more rows, for up to most_threads. A row that does not fit
// has a block to itself, in a kernel for any width.
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
  if (blocks == 0) return {0, 0, rows.count, 1, {}, rows.are_whole};
  while (threads / 2 * per_thread >= rows.vectors) threads /= 2;  // below a warp
  const int in_block = blocks == 1 ? std::max(most_threads / threads, 1) : 1;
  const int64_t blocks_x = divide_up(rows.count, in_block);
  return {0, per_thread, blocks_x, blocks, {threads, in_block}, rows.are_whole};
}

// One vector per thread is best up to 512 threads; four in blocks of 128 threads for wide rows.
// Tiles get up to 1536 threads per multiprocessor: forward_tiles has the registers for that on
// sm_90.
inline Plan plan(const RmsForward& x, const Gpu& gpu) {
  const Rows rows = rows_of(x, {x.y, x.s, x.a, x.b});
  if (!rows.are_whole) {
    const Plan tiles = by_tiles(rows, gpu, kMostThreads, 384, gpu.forward_tiles, 3 * kMostThreads);
    if (tiles.tile_rows > 0) return tiles;
  }
  if (rows.vectors > 2 * kMostThreads) return by_rows(rows, gpu, 4, 128, 128);
  return by_rows(rows, gpu, rows.vectors > kMostThreads ? 2 : 1, kMostThreads, 128);
}

// 512 threads per block, two vectors per thread, one block per multiprocessor: that has the bytes
// in flight that the memory wants, with the fewest partial sums. With few rows, each has a block of
// its own and twice the threads.
inline Plan plan(const RmsBackward& x, const Gpu& gpu) {
  const Rows rows = rows_of(x, {x.dx, x.dy, x.ds, x.s});
  if (!rows.are_whole || rows.vectors <= 8) {
    const Plan tiles = by_tiles(rows, gpu, 384, kMostThreads, gpu.backward_tiles, 2 * kMostThreads);
    if (tiles.tile_rows > 0) return tiles;
  }
  Plan found = by_rows(rows, gpu, 1, kMostThreads, 32);
  if (x.rows > gpu.multiprocessors || found.vectors_per_thread == 0 || found.blocks_y > 8) {
    found = by_rows(rows, gpu, 2, kMostThreads, kMostThreads);
  }
  if (found.vectors_per_thread > 0) {
    found.blocks_x = std::min(found.blocks_x, int64_t(gpu.clusters[__builtin_ctz(found.blocks_y)]));
    // Every eighth row begins at the same place within a vector: a block's rows are so far apart.
    if (!rows.are_whole && found.blocks_x < x.rows)
      found.blocks_x = std::max<int64_t>(found.blocks_x / 8 * 8, 8);
    return found;
  }
  const int in_vectors = kMostThreads * rows.in_vector;  // columns of a block that loads vectors
  const int64_t parts = divide_up(4 * gpu.multiprocessors, divide_up(x.width, in_vectors));
  found.blocks_x = std::min(x.rows, parts);
  found.blocks_y = divide_up(x.width, rows.are_whole ? in_vectors : kMostThreads);
  return found;
}
