// Barriers of a block.
#pragma once
#include "machine.h"

namespace emulator {

void wait_at_barrier(const BarrierRequest& request, const void* pc);
bool try_barrier(const Thread& waiting);  // opens it, if enough threads have arrived

}  // namespace emulator
