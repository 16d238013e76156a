// Counts requests, sectors and wavefronts as a GPU's L1 does.
//
// The lanes of a warp run one after the other here, each as far as it can. On a GPU they run in
// step. So each lane logs what it does, and the logs are then replayed side by side: the lanes that
// are furthest behind in the code take the next step, and those at the same place take it together,
// as one request. flow.h says which of two places comes first.
#pragma once
#include "memory.h"

namespace emulator {

struct Event {
  uint64_t address : 48, kind : 6, space : 4, unit : 6;
  uint32_t place;         // in the code
  uint16_t bytes, frame;  // frame: from find_blocks on, the block
};
struct Log {
  unsigned count = 0;
  unsigned placed = 0;  // events that have their block
  Event events[kMostSteps];
};
extern Log logs[kLanes];
extern uintptr_t code_begin;  // places count from here
inline uint32_t place_of(const void* pc) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc) - code_begin);
}

void log_access(const Access& access, Space space, const void* pc);
void log_block(const void* pc);
unsigned resume_logs(unsigned warp);  // as its turn begins; returns the lanes whose log is full
void replay(unsigned warp);           // counts what its lanes have logged
void forget_logs();
std::vector<Instruction*>& counted_instructions();  // of this launch
uint64_t& most_requests();                          // to global memory, of one warp of this launch

// rules.cpp: for one request of a warp.
Counts count_global(const Access* lanes, unsigned count);
Counts count_shared(const Access (&lanes)[kLanes], unsigned active);

}  // namespace emulator
