// The order of a kernel's code: which of two places comes first, so that lanes that part wait for
// each other where their ways meet again.
#pragma once
#include "machine.h"

namespace emulator {

constexpr uint16_t kNone = 65535;

// A function and where it was called from. A function that was inlined has no frame of its own.
struct Frame {
  uint16_t parent;
  uint32_t place;  // of the call
  unsigned depth;
  uint16_t call = kNone;              // the block of the parent that has the call
  std::vector<uint16_t> blocks = {};  // the first one is where the function begins
  bool is_ordered = false;
};
extern std::vector<Frame> frames;

// A basic block: code that runs from its first instruction to its last.
struct CodeBlock {
  uint16_t frame, index;  // in the frame's blocks
  uint32_t place;
  unsigned rank = 0;  // in its frame, as soon as that is ordered
  std::vector<uint16_t> next = {};
};
extern std::vector<CodeBlock> code;  // of all frames

uint16_t frame_of(const Thread& thread);
void enter_function(Thread& thread, const void* caller, uintptr_t stack);

// A thread comes to a basic block, or does something in it. Both return the block's number.
uint16_t walk_to(Walk& walk, uint16_t frame, uint32_t place);
uint16_t walk_in(Walk& walk, uint16_t frame);

void order_blocks_of_code();  // if there are new ones, or new ways between them
bool is_block_behind(uint16_t a, uint16_t b);
void forget_code();

void order_blocks_of(const Frame& frame);  // ranks.cpp

}  // namespace emulator
