// Operations of a warp: lanes wait for those that the mask names, then one of them computes all
// results at once.
#include "lanes.h"

#include <string.h>

#include <algorithm>

#include "faults.h"
#include "order.h"
#include "watch.h"

namespace emulator {

static bool is_same_request(const WarpRequest& a, const WarpRequest& b) {
  return a.mask == b.mask && a.operation == b.operation;
}

// The lanes that wait for the same as this one.
unsigned find_partners(const Thread& thread) {
  const Thread* lanes = &thread - thread.lane;
  unsigned found = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const Thread& other = lanes[lane];
    if (other.state == State::kAtWarpOperation && (warp_of(thread).exist >> lane & 1) &&
        is_same_request(other.warp, thread.warp))
      found |= 1u << lane;
  }
  return found;
}

bool has_passed(const Thread& thread, const void* pc) {
  for (const void* barrier : thread.passed) {
    if (barrier == pc) return false;
  }
  return thread.last_access > pc;
}

// Lanes that the mask names, and that have ended without taking part.
static void check_mask(const Thread& thread, unsigned partners) {
  const Warp& warp = warp_of(thread);
  const Thread* lanes = &thread - thread.lane;
  unsigned missing = thread.warp.mask & warp.exist & ~partners;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(missing >> lane & 1)) continue;
    const bool may_end = thread.warp.operation == kSyncWarp && !has_passed(lanes[lane], thread.pc);
    if (lanes[lane].was_killed || may_end) missing &= ~(1u << lane);
  }
  if (!missing) return;
  Fault fault = fault_here("mask", thread.pc);
  add_fact(fault, "operation", thread.warp.operation);
  add_fact(fault, "mask", thread.warp.mask);
  add_fact(fault, "missing", missing);
  add_fact(fault, "why", "ended");
  report(fault);
}

// A lane that takes no part gives no value: all bits are set, which is NaN, or -1.
static void check_source(const Thread& thread, unsigned source) {
  const Warp& warp = warp_of(thread);
  const bool is_named = thread.warp.mask >> source & 1;
  if (is_named && (warp.exist >> source & 1)) return;  // has ended: check_mask() has said so
  Fault fault = fault_here(is_named ? "mask" : "undefined value", thread.pc);
  fault.is_note = !is_named;
  add_fact(fault, "operation", thread.warp.operation);
  add_fact(fault, "mask", thread.warp.mask);
  add_fact(fault, "missing", 1u << source);
  add_fact(fault, "why", warp.exist >> source & 1 ? "not named" : "not there");
  report(fault);
}

// The lane that a shuffle reads from; its own where that would be outside of its group.
static unsigned source_of(const Thread& thread) {
  const WarpRequest& request = thread.warp;
  const int width = request.width, lane = thread.lane, first = lane / width * width;
  int source = lane;
  if (request.operation == kShuffle) source = first + (request.lane & (width - 1));
  if (request.operation == kShuffleUp) source = lane - request.lane;
  if (request.operation == kShuffleDown) source = lane + request.lane;
  if (request.operation == kShuffleXor) source = lane ^ request.lane;
  // xor may reach into a group before its own, as PTX has it
  const bool is_below = source < first && request.operation != kShuffleXor;
  if (is_below || source >= first + width) return lane;
  return source;
}

static uint64_t reduce(int operation, const Thread* lanes, unsigned partners) {
  uint32_t result = 0;
  bool is_first = true;
  for (unsigned rest = partners; rest; rest &= rest - 1) {
    const auto x = static_cast<uint32_t>(lanes[__builtin_ctz(rest)].warp.value);
    const auto a = static_cast<int32_t>(result), b = static_cast<int32_t>(x);
    if (is_first)
      result = x;
    else if (operation == kReduceAdd)
      result += x;
    else if (operation == kReduceMin)
      result = std::min(result, x);
    else if (operation == kReduceMax)
      result = std::max(result, x);
    else if (operation == kReduceMinSigned)
      result = std::min(a, b);
    else if (operation == kReduceMaxSigned)
      result = std::max(a, b);
    else if (operation == kReduceAnd)
      result &= x;
    else if (operation == kReduceOr)
      result |= x;
    else if (operation == kReduceXor)
      result ^= x;
    is_first = false;
  }
  return result;
}

static uint64_t compute_one(Thread& thread, unsigned partners) {
  const Thread* lanes = &thread - thread.lane;
  const int operation = thread.warp.operation;
  uint64_t result = 0;
  if (operation >= kShuffle && operation <= kShuffleXor) {
    const unsigned source = source_of(thread);
    if (partners >> source & 1) return lanes[source].warp.value;
    check_source(thread, source);
    return ~uint64_t(0);
  }
  for (unsigned rest = partners; rest; rest &= rest - 1) {
    const unsigned lane = __builtin_ctz(rest);
    const uint64_t value = lanes[lane].warp.value;
    const bool is_set = operation == kBallot ? value != 0 : value == thread.warp.value;
    if (is_set) result |= 1u << lane;
  }
  if (operation == kMatchAll && result != partners) result = 0;
  return result;
}

static void compute(Thread& thread, unsigned partners) {
  Thread* lanes = &thread - thread.lane;
  const int operation = thread.warp.operation;
  if (operation == kSyncWarp) return order_lanes(lanes, partners);
  if (operation >= kMatrixProduct) {
    const WarpRequest* requests[kLanes] = {};
    for (unsigned lane = 0; lane < kLanes; ++lane)
      requests[lane] = partners >> lane & 1 ? &lanes[lane].warp : nullptr;
    if (operation == kMatrixProduct) multiply_matrices(requests);
    if (operation == kMatrixLoad) ldmatrix(requests);
    if (operation == kMatrixTranspose) transpose_matrix(requests);
    return;
  }
  const bool is_reduction = operation >= kReduceAdd && operation <= kReduceXor;
  const uint64_t sum = is_reduction ? reduce(operation, lanes, partners) : 0;
  for (unsigned rest = partners; rest; rest &= rest - 1) {
    Thread& lane = lanes[__builtin_ctz(rest)];
    lane.warp.result = is_reduction ? sum : compute_one(lane, partners);
  }
}

// Does the operation for which a thread waits, if all lanes that its mask names and that have not
// ended wait for it.
bool try_warp(Thread& thread) {
  Warp& warp = warp_of(thread);
  const unsigned partners = find_partners(thread);
  if (thread.warp.mask & warp.alive & ~partners) return false;
  check_mask(thread, partners);
  compute(thread, partners);
  Thread* lanes = &thread - thread.lane;
  for (unsigned rest = partners; rest; rest &= rest - 1)
    lanes[__builtin_ctz(rest)].state = State::kReady;
  warp.ready |= partners;
  return true;
}

uint64_t join_warp(WarpRequest request, const void* pc) {
  Thread& thread = me();
  settle();
  thread.pc = pc;
  if (!(request.mask >> thread.lane & 1)) {
    Fault fault = fault_here("mask", pc);
    add_fact(fault, "operation", request.operation);
    add_fact(fault, "mask", request.mask);
    add_fact(fault, "missing", 1u << thread.lane);
    add_fact(fault, "why", "own lane");
    report_and_kill(fault);
  }
  thread.warp = request;
  thread.state = State::kAtWarpOperation;
  warp_of(thread).ready &= ~(1u << thread.lane);
  if (!try_warp(thread)) pause_thread();
  return thread.warp.result;
}

// Lanes that asked for the active mask, and now all others of the warp wait: those that ask in the
// same place are together.
bool try_active_mask(Thread& waiting) {
  Thread* lanes = &waiting - waiting.lane;
  Warp& warp = warp_of(waiting);
  if (warp.ready) return false;
  unsigned found = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const bool is_there = (warp.alive >> lane & 1) && lanes[lane].state == State::kAtActiveMask;
    if (is_there && lanes[lane].pc == waiting.pc) found |= 1u << lane;
  }
  for (unsigned rest = found; rest; rest &= rest - 1) {
    Thread& thread = lanes[__builtin_ctz(rest)];
    thread.warp.result = found;
    thread.state = State::kReady;
  }
  warp.ready |= found;
  return true;
}

}  // namespace emulator

using namespace emulator;

EMULATOR_API uint64_t emulator_warp(int operation, unsigned mask, uint64_t value, int lane,
                                    int width) {
  if (!is_in_kernel("an operation of a warp")) return value;
  return join_warp({operation, mask, value, 0, lane, width}, __builtin_return_address(0));
}

EMULATOR_API unsigned emulator_active_mask() {
  if (!is_in_kernel("__activemask")) return 1;
  Thread& thread = me();
  settle();
  thread.pc = __builtin_return_address(0);
  thread.state = State::kAtActiveMask;
  warp_of(thread).ready &= ~(1u << thread.lane);
  pause_thread();
  return static_cast<unsigned>(thread.warp.result);
}
