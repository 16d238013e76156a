#include "count.h"

#include <string.h>

#include <algorithm>

namespace emulator {

Log logs[kLanes];
uintptr_t code_begin;

constexpr unsigned kBlock = 63;  // an Event's kind: no access, the lane came to a new place

static uint32_t place_of(const void* pc) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc) - code_begin);
}

static void append(const Thread& thread, const Event& event) {
  Log& log = logs[thread.lane];
  if (log.count < kMostSteps) log.events[log.count++] = event;
}

static uint16_t frame_of(const Thread& thread) {
  return thread.frames.empty() ? 0 : thread.frames.back().number;
}

void log_access(const Access& access, Space space, const void* pc) {
  if (!machine.options.counts || space == Space::kConstant) return;
  const auto bytes = static_cast<uint16_t>(std::min(access.bytes, 65535u));
  append(me(), {access.address, uint64_t(access.kind), uint64_t(space), access.unit, place_of(pc),
                bytes, frame_of(me())});
}

void log_block(const void* pc) { append(me(), {0, kBlock, 0, 0, place_of(pc), 0, frame_of(me())}); }

// ---- Frames: where a function was called from.

struct Call {
  uint16_t parent;
  uint32_t place;
  unsigned depth;
};
static std::vector<Call> calls = {{0, 0, 0}};

static uint16_t frame_below(uint16_t parent, uint32_t place) {
  for (size_t i = parent + 1u; i < calls.size(); ++i) {
    if (calls[i].parent == parent && calls[i].place == place) return i;
  }
  if (calls.size() == 65535) return parent;
  calls.push_back({parent, place, calls[parent].depth + 1});
  return static_cast<uint16_t>(calls.size() - 1);
}

void enter_function(Thread& thread, const void* caller, uintptr_t stack) {
  log_block(caller);
  thread.frames.push_back({frame_below(frame_of(thread), place_of(caller)), stack});
}

void forget_frames() { calls.resize(1); }

// Whether a comes before b in the code: by the places in the innermost function that both are in.
static bool is_behind(const Event& a, const Event& b) {
  if (a.frame == b.frame) return a.place < b.place;
  uint16_t x = a.frame, y = b.frame;
  uint32_t x_place = a.place, y_place = b.place;
  const auto leave = [](uint16_t& frame, uint32_t& place) {
    place = calls[frame].place;
    frame = calls[frame].parent;
  };
  while (calls[x].depth > calls[y].depth) leave(x, x_place);
  while (calls[y].depth > calls[x].depth) leave(y, y_place);
  while (x != y) {
    leave(x, x_place);
    leave(y, y_place);
  }
  if (x_place != y_place) return x_place < y_place;
  return calls[a.frame].depth > calls[b.frame].depth;  // inside the call, before its end
}

// ---- The hardware's rules.

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

// ---- The replay.

static void add(Counts& to, const Counts& counts) {
  to.requests += counts.requests;
  to.sectors += counts.sectors;
  to.ideal += counts.ideal;
  to.wavefronts += counts.wavefronts;
  to.conflicts += counts.conflicts;
}

std::vector<Instruction*>& counted_instructions() {
  static std::vector<Instruction*> counted;
  return counted;
}

static void count_request(Instruction& instruction, Space space, Kind kind,
                          const Access (&lanes)[kLanes], unsigned active) {
  if (!instruction.is_counted) counted_instructions().push_back(&instruction);
  instruction.is_counted = true;
  Counts& to = instruction.counts[unsigned(space)][unsigned(kind)];
  if (space == Space::kShared) return add(to, count_shared(lanes, active));
  Access dense[kLanes];
  unsigned count = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (active >> lane & 1) dense[count++] = lanes[lane];
  }
  add(to, count_global(dense, count));
}

// A struct is copied in pieces, one instruction each, as large as its alignment allows.
static unsigned piece_of(const Access (&lanes)[kLanes], unsigned active, const Event& event) {
  if (event.unit == 0) return event.bytes;
  uintptr_t bits = event.bytes | event.unit;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (active >> lane & 1) bits |= lanes[lane].address;
  }
  return bits & -bits;
}

static void step(const unsigned (&at)[kLanes], unsigned active) {
  const Event& event = logs[__builtin_ctz(active)].events[at[__builtin_ctz(active)]];
  if (event.kind == kBlock) return;
  Access lanes[kLanes];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(active >> lane & 1)) continue;
    const Event& own = logs[lane].events[at[lane]];
    lanes[lane] = {own.address, own.bytes, Kind(own.kind), false, 0};
  }
  Instruction& instruction = instruction_at(reinterpret_cast<void*>(code_begin + event.place));
  const unsigned bytes = event.bytes, piece = piece_of(lanes, active, event);
  for (unsigned from = 0; from < bytes; from += piece) {
    Access parts[kLanes];
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if (!(active >> lane & 1)) continue;
      parts[lane] = {lanes[lane].address + from, piece, Kind(event.kind), false, 0};
    }
    count_request(instruction, Space(event.space), Kind(event.kind), parts, active);
  }
}

void replay() {
  unsigned at[kLanes] = {}, left = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (logs[lane].count > 0) left |= 1u << lane;
  }
  while (left) {
    unsigned active = 0;
    const Event* first = nullptr;
    for (unsigned rest = left; rest; rest &= rest - 1) {
      const unsigned lane = __builtin_ctz(rest);
      const Event& event = logs[lane].events[at[lane]];
      if (first && event.place == first->place && event.frame == first->frame) {
        active |= 1u << lane;
      } else if (!first || is_behind(event, *first)) {
        active = 1u << lane;
        first = &event;
      }
    }
    step(at, active);
    for (unsigned rest = active; rest; rest &= rest - 1) {
      const unsigned lane = __builtin_ctz(rest);
      if (++at[lane] == logs[lane].count) left &= ~(1u << lane);
    }
  }
  for (Log& log : logs) log.count = 0;
}

}  // namespace emulator
