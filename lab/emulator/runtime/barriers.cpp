// Barriers of a block.
#include "barriers.h"

#include <algorithm>
#include <vector>

#include "faults.h"
#include "lanes.h"
#include "watch.h"

namespace emulator {

void wait_at_barrier(const BarrierRequest& request, const void* pc) {
  Thread& thread = me();
  settle();
  thread.pc = pc;
  thread.loads[0] = thread.loads[1] = {};
  thread.barrier = request;
  thread.state = State::kAtBarrier;
  warp_of(thread).ready &= ~(1u << thread.lane);
  pause_thread();
}

// Threads that have ended let a barrier pass. That is what CUDA's __syncthreads() leaves undefined,
// and what a GPU does. Where a part of a warp has ended, or a thread went past the barrier, it is a
// fault.
static void check_ended(const Thread& waiting) {
  unsigned passed = 0, early = 0;
  const Thread* other = nullptr;
  for (unsigned i = 0; i < machine.threads; ++i) {
    const Thread& thread = threads[i];
    if (thread.state != State::kEnded || thread.was_killed) continue;
    const bool is_part = warp_of(thread).alive != 0;
    const bool is_fault = is_part || has_passed(thread, waiting.pc);
    if (is_fault && !passed) other = &thread;
    is_fault ? ++passed : ++early;
  }
  if (!passed && !early) return;
  Fault fault = fault_here(passed ? "barrier" : "ended before a barrier", waiting.pc);
  fault.is_note = !passed;
  if (other) {
    fault.has_other = true;
    fault.other_block = machine.block;
    fault.other_thread = other->at;
    fault.other_pc = other->last_access;
  }
  add_fact(fault, "missing", passed ? passed : early);
  add_fact(fault, "threads", machine.threads);
  report(fault);
}

// Threads of one warp that wait in different lines.
static void check_places(unsigned first_thread) {
  const void* pc = nullptr;
  for (unsigned i = first_thread; i < std::min(first_thread + kLanes, machine.threads); ++i) {
    if (threads[i].state != State::kAtBarrier) continue;
    if (pc && threads[i].pc != pc) {
      machine.current = &threads[i];
      Fault fault = fault_here("barrier", threads[i].pc);
      fault.other_pc = pc;  // the report drops it if both are in one line
      add_fact(fault, "is_two_places", 1);
      report(fault);
      machine.current = nullptr;
      return;
    }
    pc = threads[i].pc;
  }
}

static int reduce_predicates(const Thread& waiting, const std::vector<Thread*>& arrived) {
  int count = 0;
  for (const Thread* thread : arrived) count += thread->barrier.predicate != 0;
  if (waiting.barrier.how == 2) return count == static_cast<int>(arrived.size());
  return waiting.barrier.how == 3 ? count > 0 : count;
}

// Keeps where a thread has waited, for has_passed().
static void note_passed(Thread& thread) {
  for (const void*& barrier : thread.passed) {
    if (!barrier) barrier = thread.pc;
    if (barrier == thread.pc) return;
  }
}

bool try_barrier(const Thread& waiting) {
  std::vector<Thread*> arrived;
  for (unsigned i = 0; i < machine.threads; ++i) {
    if (threads[i].state == State::kAtBarrier && threads[i].barrier.id == waiting.barrier.id)
      arrived.push_back(&threads[i]);
  }
  const bool are_all = waiting.barrier.threads == 0;
  const unsigned needed = are_all ? machine.alive : waiting.barrier.threads;
  if (arrived.size() < needed) return false;
  machine.current = arrived[0];
  if (are_all && machine.alive < machine.threads) check_ended(waiting);
  machine.current = nullptr;
  for (unsigned i = 0; are_all && i < machine.threads; i += kLanes) check_places(i);
  const int result = reduce_predicates(waiting, arrived);
  machine.barrier = ++machine.now;
  machine.met_device_fence = machine.device_fence;
  machine.met_block_fence = machine.block_fence;
  machine.stuck = 0;
  ++machine.barriers;
  for (Thread* thread : arrived) {
    thread->barrier.result = result;
    note_passed(*thread);
    thread->state = State::kReady;
    warp_of(*thread).ready |= 1u << thread->lane;
  }
  return true;
}

}  // namespace emulator

using namespace emulator;

EMULATOR_API int emulator_barrier(int id, int threads, int predicate, int how) {
  if (!is_in_kernel("a barrier")) return 0;
  wait_at_barrier({id, threads, predicate, how, 0}, __builtin_return_address(0));
  return me().barrier.result;
}
