#include "count.h"

#include <string.h>

#include <algorithm>

#include "flow.h"

namespace emulator {

Log logs[kLanes];
uintptr_t code_begin;

constexpr unsigned kBlock = 63;  // an Event's kind: no access, the lane came to a new basic block

static void append(const Thread& thread, const Event& event) {
  Log& log = logs[thread.lane];
  if (log.count < kMostSteps) log.events[log.count++] = event;
}

void log_access(const Access& access, Space space, const void* pc) {
  if (!machine.options.counts || space == Space::kConstant) return;
  const auto bytes = static_cast<uint16_t>(std::min(access.bytes, 65535u));
  append(me(), {access.address, uint64_t(access.kind), uint64_t(space), access.unit, place_of(pc),
                bytes, frame_of(me())});
}

void log_block(const void* pc) {
  if (!machine.options.counts) return;
  append(me(), {0, kBlock, 0, 0, place_of(pc), 0, frame_of(me())});
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

static uint64_t requests_of[kMostThreads / kLanes];  // to global memory, of the warps of this block

uint64_t& most_requests() {
  static uint64_t most;
  return most;
}

static void count_request(Instruction& instruction, Space space, Kind kind,
                          const Access (&lanes)[kLanes], unsigned active, unsigned warp) {
  if (!instruction.is_counted) counted_instructions().push_back(&instruction);
  instruction.is_counted = true;
  Counts& to = instruction.counts[unsigned(space)][unsigned(kind)];
  if (space == Space::kShared) return add(to, count_shared(lanes, active));
  most_requests() = std::max(most_requests(), ++requests_of[warp]);
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

static void step(const unsigned (&at)[kLanes], unsigned active, unsigned warp) {
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
    count_request(instruction, Space(event.space), Kind(event.kind), parts, active, warp);
  }
}

// Finds the blocks that the lanes came to, and how one led to another. From then on an event has
// its block in place of its frame.
static void find_blocks(unsigned warp) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    Walk& walk = threads[warp * kLanes + lane].walk;
    Log& log = logs[lane];
    for (; log.placed < log.count; ++log.placed) {
      Event& event = log.events[log.placed];
      if (event.kind == kBlock)
        event.frame = walk_to(walk, event.frame, event.place);
      else
        event.frame = walk_in(walk, event.frame);
    }
  }
  order_blocks_of_code();
}

static bool is_behind(const Event& a, const Event& b) {
  if (a.frame == b.frame) return a.place < b.place;  // in one block
  return is_block_behind(a.frame, b.frame);
}

// ---- A lane that has run for long waits until all lanes have had their turn. What it has logged
// since the others' last step is kept, for their next steps may come first.

constexpr unsigned kMostWaits = 16;
static std::vector<Event> kept[kMostThreads];
static bool has_kept[kMostThreads / kLanes];
static unsigned waits[kMostThreads / kLanes];  // turns of a warp in which a full log has waited

unsigned resume_logs(unsigned warp) {
  unsigned full = 0;
  for (unsigned lane = 0; lane < kLanes && has_kept[warp]; ++lane) {
    std::vector<Event>& events = kept[warp * kLanes + lane];
    std::copy(events.begin(), events.end(), logs[lane].events);
    logs[lane].count = logs[lane].placed = events.size();
    if (events.size() == kMostSteps) full |= 1u << lane;
    std::vector<Event>().swap(events);
  }
  has_kept[warp] = false;
  return full;
}

static void keep_logs(unsigned warp, const unsigned (&at)[kLanes], unsigned left) {
  has_kept[warp] = left != 0;
  bool is_waiting = false;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    Log& log = logs[lane];
    if (left >> lane & 1) {
      kept[warp * kLanes + lane].assign(log.events + at[lane], log.events + log.count);
      is_waiting |= at[lane] == 0 && log.count == kMostSteps;
    }
    log.count = log.placed = 0;
  }
  if (waits[warp] < kMostWaits) waits[warp] = is_waiting ? waits[warp] + 1 : 0;
}

void forget_logs() {
  for (unsigned warp = 0; warp < kMostThreads / kLanes; ++warp) {
    resume_logs(warp);
    waits[warp] = requests_of[warp] = 0;
  }
  for (Log& log : logs) log.count = log.placed = 0;
}

void replay(unsigned warp) {
  find_blocks(warp);
  // The next step of a lane that has more to do must be known. But one whose log is full does not
  // wait for long, as the others may wait for what it will do: then this warp counts as it runs.
  const unsigned unfinished = waits[warp] < kMostWaits ? warps[warp].ready : 0;
  unsigned at[kLanes] = {}, left = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (logs[lane].count > 0) left |= 1u << lane;
  }
  while (left && !(unfinished & ~left)) {
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
    step(at, active, warp);
    for (unsigned rest = active; rest; rest &= rest - 1) {
      const unsigned lane = __builtin_ctz(rest);
      if (++at[lane] == logs[lane].count) left &= ~(1u << lane);
    }
  }
  keep_logs(warp, at, left);
}

}  // namespace emulator
