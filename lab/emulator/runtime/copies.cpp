// cp.async: the bytes are taken as a copy starts, and arrive when the thread waits for it. Until
// then shared memory has what was there before, and a read of it is a fault.
#include "copies.h"

#include <string.h>

#include "faults.h"
#include "watch.h"

namespace emulator {

void start_copy(uintptr_t to, const void* from, unsigned bytes, unsigned zeros, const void* pc) {
  const bool is_size = bytes == 4 || bytes == 8 || bytes == 16;
  if (!is_size || (to | uintptr_t(from)) % bytes) {
    Fault fault = fault_here("misaligned", pc);
    fault.access = "copy";
    fault.address = to % bytes ? to : uintptr_t(from);
    fault.bytes = bytes;
    add_fact(fault, "alignment", is_size ? bytes : 16);
    report_and_kill(fault);
  }
  Copy copy = {to, bytes, pc, {}};
  const unsigned taken = bytes - (zeros < bytes ? zeros : bytes);
  if (taken > 0) {
    on_access({uintptr_t(from), taken, Kind::kCopy, false, 0}, pc);
    memcpy(copy.data, from, taken);
  }
  on_access({to, bytes, Kind::kArrival, false, 0}, pc);
  me().copies.push_back(copy);
  ++me().in_batch;
}

void commit_copies() {
  Thread& thread = me();
  thread.batches.push_back(thread.in_batch);
  thread.in_batch = 0;
}

void wait_for_copies(unsigned batches_left) {
  Thread& thread = me();
  settle();
  while (thread.batches.size() > batches_left) {
    const unsigned count = thread.batches.front();
    for (unsigned i = 0; i < count; ++i) {
      const Copy& copy = thread.copies[i];
      memcpy(reinterpret_cast<void*>(copy.to), copy.data, copy.bytes);
      check_arrival(copy);
    }
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + count);
    thread.batches.erase(thread.batches.begin());
  }
}

void drop_copies(Thread& thread) {
  if (thread.copies.empty() && thread.batches.empty()) return;
  thread.copies.clear();
  thread.batches.clear();
  thread.in_batch = 0;
}

}  // namespace emulator

using namespace emulator;

EMULATOR_API void emulator_copy_async(void* to, const void* from, size_t bytes, size_t zeros) {
  if (!is_in_kernel("__pipeline_memcpy_async")) return;
  start_copy(uintptr_t(to), from, unsigned(bytes), unsigned(zeros), __builtin_return_address(0));
}
EMULATOR_API void emulator_copy_commit() {
  if (is_in_kernel("__pipeline_commit")) commit_copies();
}
EMULATOR_API void emulator_copy_wait(unsigned batches) {
  if (is_in_kernel("__pipeline_wait_prior")) wait_for_copies(batches);
}
