// What a thread calls to meet others: barriers, operations of a warp, fences; and copies in the
// background.
#include <string.h>

#include "faults.h"
#include "machine.h"
#include "memory.h"

using namespace emulator;

#define CALLER __builtin_return_address(0)

// Outside of a kernel there is no other thread to meet.
static bool is_in_kernel(const char* what) {
  if (machine.current) return true;
  Fault fault = fault_here("not in a kernel", nullptr);
  add_fact(fault, "text", what);
  report(fault);
  return false;
}

namespace emulator {

void wait_at_barrier(const BarrierRequest& request, const void* pc) {
  Thread& thread = me();
  settle();
  thread.pc = pc;
  thread.barrier = request;
  thread.state = State::kAtBarrier;
  warp_of(thread).ready &= ~(1u << thread.lane);
  pause_thread();
}

}  // namespace emulator

EMULATOR_API int emulator_barrier(int id, int threads, int predicate, int how) {
  if (!is_in_kernel("a barrier")) return 0;
  wait_at_barrier({id, threads, predicate, how, 0}, CALLER);
  return me().barrier.result;
}

EMULATOR_API uint64_t emulator_warp(int operation, unsigned mask, uint64_t value, int lane,
                                    int width) {
  if (!is_in_kernel("an operation of a warp")) return value;
  return join_warp({operation, mask, value, 0, lane, width}, CALLER);
}

EMULATOR_API unsigned emulator_active_mask() {
  if (!is_in_kernel("__activemask")) return 1;
  Thread& thread = me();
  settle();
  thread.pc = CALLER;
  thread.state = State::kAtActiveMask;
  warp_of(thread).ready &= ~(1u << thread.lane);
  pause_thread();
  return static_cast<unsigned>(thread.warp.result);
}

EMULATOR_API void emulator_fence(int scope) {
  if (!machine.current) return;
  settle();
  on_fence(scope > 0);
}

// ---- cp.async.

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
    on_access({uintptr_t(from), taken, Kind::kCopy, false, taken < bytes}, pc);
    memcpy(copy.data, from, taken);
  }
  on_access({to, bytes, Kind::kArrival, false, false}, pc);
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

EMULATOR_API void emulator_copy_async(void* to, const void* from, size_t bytes, size_t zeros) {
  if (!is_in_kernel("__pipeline_memcpy_async")) return;
  start_copy(uintptr_t(to), from, unsigned(bytes), unsigned(zeros), CALLER);
}
EMULATOR_API void emulator_copy_commit() {
  if (is_in_kernel("__pipeline_commit")) commit_copies();
}
EMULATOR_API void emulator_copy_wait(unsigned batches) {
  if (is_in_kernel("__pipeline_wait_prior")) wait_for_copies(batches);
}
