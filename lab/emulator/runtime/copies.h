// cp.async: copies to shared memory in the background.
#pragma once
#include "machine.h"

namespace emulator {

void start_copy(uintptr_t to, const void* from, unsigned bytes, unsigned zeros, const void* pc);
void commit_copies();
void wait_for_copies(unsigned batches_left);
void drop_copies(Thread& thread);

}  // namespace emulator
