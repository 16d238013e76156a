// Which accesses surely came before others: by barriers, by __syncwarp, by a fence and a flag.
#include "order.h"

#include <string.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace emulator {

struct Release {  // a store that others may wait for
  uintptr_t address;
  uint32_t device_fence, block_fence;  // what the block had done before is published
  uint64_t sequence;
};
static std::vector<Release> releases;
struct Block {
  uint32_t time;
  uint64_t linear;
  size_t releases;  // those of blocks before it
};
static std::vector<Block> blocks;
static std::unordered_map<uintptr_t, uint64_t> acquired;    // by any thread of this block
static std::unordered_map<uint64_t, uint64_t> acquired_by;  // by a thread
static uint64_t sequence;

void note_block(uint32_t time) {
  blocks.push_back({time, machine.block_number, releases.size()});
  if (acquired.empty()) return;
  acquired.clear();
  acquired_by.clear();
}

static const Block& block_of(uint32_t time) {
  const auto after = std::upper_bound(blocks.begin(), blocks.end(), time,
                                      [](uint32_t t, const Block& b) { return t < b.time; });
  return after[-1];
}

uint64_t block_at(uint32_t time) { return block_of(time).linear; }

void forget_releases() {
  releases.clear();
  blocks.clear();
}

void on_fence(bool is_device) {
  Thread& thread = me();
  machine.block_fence = thread.block_fence = ++machine.now;
  if (is_device) machine.device_fence = thread.device_fence = machine.now;
}

static uint64_t key_of(uintptr_t address, const Thread& thread) {
  return address << 10 | thread.number;
}

void on_release(uintptr_t address) {
  const Thread& thread = me();
  const Release release = {address, std::max(thread.device_fence, machine.met_device_fence),
                           std::max(thread.block_fence, machine.met_block_fence), ++sequence};
  if (release.block_fence >= machine.block_begin) releases.push_back(release);
}

void on_acquire(uintptr_t address) {
  if (releases.empty()) return;
  acquired[address] = ++sequence;
  acquired_by[key_of(address, me())] = sequence;
}

// Whether an access by another thread was published, and this thread has waited for that.
static bool is_released(const Touch& touch) {
  if (releases.empty()) return false;
  const Block& block = block_of(touch.time);
  const bool is_here = touch.time >= machine.block_begin;
  const size_t end =
      &block + 1 == blocks.data() + blocks.size() ? releases.size() : (&block + 1)->releases;
  for (size_t i = block.releases; i < end; ++i) {
    const Release& release = releases[i];
    if (touch.time >= (is_here ? release.block_fence : release.device_fence)) continue;
    uint64_t when = 0;
    if (is_here) {
      const auto found = acquired_by.find(key_of(release.address, me()));
      if (found != acquired_by.end()) when = found->second;
    } else {
      const auto found = acquired.find(release.address);
      if (found != acquired.end()) when = found->second;
    }
    if (when > release.sequence) return true;
  }
  return false;
}

// Whether an access surely came before what the current thread does now.
bool is_before(const Touch& touch) {
  if (touch.time < machine.barrier) {
    if (touch.time < machine.launch_begin || touch.time >= machine.block_begin) return true;
    return is_released(touch);
  }
  const Thread& thread = me();
  const unsigned other = touch.thread & kThreadBits;
  if (other == thread.number) return true;
  if (other / kLanes == thread.warp_number()) {
    const Warp& warp = warp_of(thread);
    if (touch.time < warp.synced) return true;
    if (warp.has_pairs && touch.time < warp.pairs[thread.lane][other % kLanes]) return true;
  }
  return is_released(touch);
}

bool is_same_warp(const Touch& touch) {
  const unsigned warp = (touch.thread & kThreadBits) / kLanes;
  return touch.time >= machine.block_begin && warp == me().warp_number();
}

// Atomic and volatile accesses may meet. In shared memory of one warp volatile does not help: that
// was the way before Volta, whose threads do not run in step.
bool may_meet(const Touch& touch, const Access& access, const Region& region) {
  const bool is_strong = touch.thread & (kIsAtomic | kIsVolatile);
  if (!is_strong || !(access.is_volatile || access.kind == Kind::kAtomic)) return false;
  const bool is_atomic = (touch.thread & kIsAtomic) && access.kind == Kind::kAtomic;
  if (is_atomic || region.space != Space::kShared) return true;
  return !is_same_warp(touch);
}

void order_lanes(Thread* lanes, unsigned mask) {
  Warp& warp = warp_of(*lanes);
  const uint32_t now = ++machine.now;
  uint32_t device_fence = 0, block_fence = 0;  // what one has made visible, the others pass on
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(mask >> lane & 1)) continue;
    device_fence = std::max(device_fence, lanes[lane].device_fence);
    block_fence = std::max(block_fence, lanes[lane].block_fence);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(mask >> lane & 1)) continue;
    lanes[lane].device_fence = device_fence;
    lanes[lane].block_fence = block_fence;
  }
  if ((warp.alive & ~mask) == 0) {
    warp.synced = now;
    return;
  }
  if (!warp.has_pairs) memset(warp.pairs, 0, sizeof(warp.pairs));
  warp.has_pairs = true;
  uint32_t known[kLanes] = {};
  for (unsigned a = 0; a < kLanes; ++a) {
    if (!(mask >> a & 1)) continue;
    for (unsigned b = 0; b < kLanes; ++b)
      known[b] = std::max({known[b], warp.pairs[a][b], mask >> b & 1 ? now : 0});
  }
  for (unsigned a = 0; a < kLanes; ++a) {
    if (mask >> a & 1) memcpy(warp.pairs[a], known, sizeof(known));
  }
}

}  // namespace emulator
