// The hardware's rules for one request of a warp. Where Nsight Compute and this differ, it is here.
#include <algorithm>

#include "count.h"

namespace emulator {

// A request of a warp to global memory asks L1 for each sector of 32 bytes once.
Counts count_global(const Access* lanes, unsigned count) {
  Counts found = {1, 0, 0, 0, 0};
  std::pair<uintptr_t, uintptr_t> parts[kLanes];
  for (unsigned i = 0; i < count; ++i)
    parts[i] = {lanes[i].address, lanes[i].address + lanes[i].bytes};
  if (!std::is_sorted(parts, parts + count)) std::sort(parts, parts + count);
  uintptr_t next_sector = 0, end = 0, bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    const auto [from, to] = parts[i];
    const uintptr_t first = std::max(from / 32, next_sector), past = (to + 31) / 32;
    if (past > first) found.sectors += past - first;
    next_sector = std::max(next_sector, past);
    if (to > end) bytes += to - std::max(from, end);
    end = std::max(end, to);
  }
  found.ideal = (bytes + 31) / 32;
  return found;
}

// Shared memory has 32 banks of 4 bytes. In a wavefront each bank gives one word, to any number of
// lanes. Returns the wavefronts that some lanes need.
static unsigned count_wavefronts(const Access (&lanes)[kLanes], unsigned active) {
  uintptr_t words[32][kLanes * 4];
  unsigned counts[32] = {}, most = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(active >> lane & 1)) continue;
    const uintptr_t last = (lanes[lane].address + lanes[lane].bytes - 1) / 4;
    for (uintptr_t word = lanes[lane].address / 4; word <= last; ++word) {
      const unsigned bank = word % 32;
      unsigned i = 0;
      while (i < counts[bank] && words[bank][i] != word) ++i;
      if (i == counts[bank]) words[bank][counts[bank]++] = word;
      most = std::max(most, counts[bank]);
    }
  }
  return most;
}

// Whether all active lanes have the address of their neighbour, lane ^ 1 or lane ^ 2.
static bool are_pairs(const Access (&lanes)[kLanes], unsigned active, unsigned step) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const bool are_both = (active >> lane & 1) && (active >> (lane ^ step) & 1);
    if (are_both && lanes[lane].address != lanes[lane ^ step].address) return false;
  }
  return true;
}

// A wavefront returns at most 128 bytes. So lanes with 8 bytes each go in two halves of the warp,
// with 16 bytes in four quarters; half as many if neighbours want the same. More wavefronts than
// that are bank conflicts.
Counts count_shared(const Access (&lanes)[kLanes], unsigned active) {
  Counts found = {1, 0, 0, 0, 0};
  const unsigned bytes = lanes[__builtin_ctz(active)].bytes;
  unsigned parts = bytes > 8 ? 4 : bytes > 4 ? 2 : 1;
  if (parts > 1 && (are_pairs(lanes, active, 1) || are_pairs(lanes, active, 2))) parts /= 2;
  const unsigned width = kLanes / parts;
  for (unsigned part = 0; part < parts; ++part) {
    const unsigned mask = width == 32 ? ~0u : ((1u << width) - 1) << part * width;
    if (!(active & mask)) continue;
    const unsigned wavefronts = count_wavefronts(lanes, active & mask);
    found.wavefronts += wavefronts;
    found.conflicts += wavefronts - 1;
  }
  return found;
}

}  // namespace emulator
