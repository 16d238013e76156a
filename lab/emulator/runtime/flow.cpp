// The blocks and the ways between them are those that threads have taken.
#include "flow.h"

#include <algorithm>
#include <unordered_map>

#include "count.h"

namespace emulator {

std::vector<Frame> frames = {{0, 0, 0}};
std::vector<CodeBlock> code;
static std::unordered_map<uint64_t, uint16_t> block_numbers;
static struct {
  uint64_t key;
  uint16_t number;
} recent_blocks[1024];

void forget_code() {
  frames.assign(1, {0, 0, 0});
  code.clear();
  block_numbers.clear();
  for (auto& each : recent_blocks) each = {UINT64_MAX, 0};
}

// ---- Frames.

uint16_t frame_of(const Thread& thread) {
  return thread.frames.empty() ? 0 : thread.frames.back().number;
}

static uint16_t frame_below(uint16_t parent, uint32_t place) {
  for (size_t i = parent + 1u; i < frames.size(); ++i) {
    if (frames[i].parent == parent && frames[i].place == place) return static_cast<uint16_t>(i);
  }
  if (frames.size() == kNone || code.size() > kNone - 8192) return parent;  // a deep recursion
  frames.push_back({parent, place, frames[parent].depth + 1});
  return static_cast<uint16_t>(frames.size() - 1);
}

void enter_function(Thread& thread, const void* caller, uintptr_t stack) {
  log_block(caller);
  thread.frames.push_back({frame_below(frame_of(thread), place_of(caller)), stack});
}

// ---- Blocks.

static uint16_t code_block_at(uint16_t frame, uint32_t place) {
  const uint64_t key = uint64_t(frame) << 32 | place;
  auto& last = recent_blocks[(place ^ frame * 97u) / 2 % 1024];
  if (last.key == key) return last.number;
  auto found = block_numbers.find(key);
  if (found == block_numbers.end()) {
    const auto& blocks = frames[frame].blocks;
    if (code.size() == kNone) return blocks.empty() ? 0 : blocks.back();  // no number is left
    found = block_numbers.insert({key, static_cast<uint16_t>(code.size())}).first;
    code.push_back({frame, static_cast<uint16_t>(frames[frame].blocks.size()), place});
    frames[frame].blocks.push_back(found->second);
    frames[frame].is_ordered = false;
  }
  last = {key, found->second};
  return found->second;
}

// Goes to a frame: into a function, or back to one that has called.
static Step& step_in(Walk& walk, uint16_t frame) {
  while (!walk.empty() && walk.back().frame != frame &&
         frames[walk.back().frame].depth >= frames[frame].depth)
    walk.pop_back();
  if (walk.empty() || walk.back().frame != frame) {
    if (!walk.empty()) frames[frame].call = walk.back().block;
    walk.push_back({frame, kNone});
  }
  return walk.back();
}

uint16_t walk_to(Walk& walk, uint16_t frame, uint32_t place) {
  const uint16_t block = code_block_at(frame, place);
  Step& step = step_in(walk, frame);
  if (step.block != kNone && code[step.block].frame == code[block].frame) {
    auto& next = code[step.block].next;
    if (std::find(next.begin(), next.end(), block) == next.end()) {
      next.push_back(block);
      frames[frame].is_ordered = false;
    }
  }
  step.block = block;
  return block;
}

uint16_t walk_in(Walk& walk, uint16_t frame) {
  const Step& step = step_in(walk, frame);
  return step.block == kNone ? walk_to(walk, frame, 0) : step.block;
}

// ---- Order.

void order_blocks_of_code() {
  for (Frame& frame : frames) {
    if (!frame.is_ordered) order_blocks_of(frame);
    frame.is_ordered = true;
  }
}

bool is_block_behind(uint16_t a, uint16_t b) {
  uint16_t x = a, y = b;
  const auto depth = [](uint16_t block) { return frames[code[block].frame].depth; };
  const auto leave = [](uint16_t block) { return frames[code[block].frame].call; };
  while (depth(x) > depth(y)) x = leave(x);
  while (depth(y) > depth(x)) y = leave(y);
  while (code[x].frame != code[y].frame) {
    x = leave(x);
    y = leave(y);
  }
  if (x == y) return depth(a) > depth(b);  // inside the call, before its end
  return code[x].rank < code[y].rank;
}

}  // namespace emulator
