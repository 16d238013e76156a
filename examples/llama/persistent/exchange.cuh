// How blocks send each other numbers. A number has a tag in the same 64 bits, which are written and
// read at once: a reader that finds the tag has the number, too. So no barrier is needed, and no
// order between two accesses.
#pragma once
#include "shape.cuh"

namespace persistent {

// kBarriers: instead, all blocks meet after each part of a step. It is slower: a rung of the page's
// ladder.
enum class Exchange { kTags, kBarriers };

constexpr int kMostTries = 1 << 22;  // some seconds: then another block has failed

__device__ inline void send(Tagged* to, uint32_t x, uint32_t tag) {
  store_relaxed(to, x | Tagged{tag} << 32);
}
__device__ inline bool has_tag(Tagged x, uint32_t tag) {
  return static_cast<uint32_t>(x >> 32) == tag;
}

// Waits for a number. x: what a first load has found; so a caller can start several loads before it
// waits.
template <Exchange kExchange>
__device__ inline uint32_t receive(Tagged x, const Tagged* from, uint32_t tag) {
  for (int i = 0; kExchange == Exchange::kTags && !has_tag(x, tag); ++i) {
    if (i == kMostTries) __trap();
    x = load_relaxed(from);
  }
  return static_cast<uint32_t>(x);
}

// The same for four numbers of bfloat16.
template <Exchange kExchange>
__device__ inline uint2 receive_four(ulonglong2 x, const Tagged* from, uint32_t tag) {
  for (int i = 0; kExchange == Exchange::kTags && !(has_tag(x.x, tag) && has_tag(x.y, tag)); ++i) {
    if (i == kMostTries) __trap();
    x = load_two_relaxed(from);
  }
  return {static_cast<uint32_t>(x.x), static_cast<uint32_t>(x.y)};
}

// A consumer thread, and where it stands.
struct Consumer {
  const Step& step;
  Shared& shared;
  int layer = 0;
  uint32_t tag = 0;       // of this layer
  unsigned barriers = 0;  // that all blocks have passed
  int buffer = 0;         // of sums: the next one. Two, so one barrier of the block is enough.
  Place place = {0, 0};
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes

  __device__ void sync() const { named_barrier_sync(1, kConsumers); }
  // Waits for the next stage.
  __device__ const char* stage() const {
    wait(&shared.full[place.stage], place.parity);
    return shared.ring[place.stage];
  }
  // This warp has read the stage.
  __device__ void release() {
    __syncwarp();
    if (lane == 0) arrive(&shared.empty[place.stage]);
    place.next();
  }
  __device__ float* next_sums() {
    buffer ^= 1;
    return shared.sums[buffer ^ 1];
  }
};

// All blocks have sent what they had to. The counter may wrap: what counts is how far it is from
// what this barrier waits for.
template <Exchange kExchange>
__device__ inline void grid_barrier(Consumer& c) {
  if (kExchange == Exchange::kTags) return;
  c.sync();
  ++c.barriers;
  if (c.thread == 0) {
    count_up(c.step.arrived);
    const unsigned all = c.barriers * gridDim.x;
    for (int i = 0; static_cast<int>(load_counter(c.step.arrived) - all) < 0; ++i) {
      if (i == kMostTries) __trap();
    }
  }
  c.sync();
}

}  // namespace persistent
