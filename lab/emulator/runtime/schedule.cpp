// Runs a launch: block after block, and in a block warp after warp, thread after thread, each until
// it ends or waits for others.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "count.h"
#include "faults.h"
#include "machine.h"
#include "memory.h"
#include "signals.h"

// What a kernel reads as threadIdx and so on: constants, as they never change within a thread.
extern "C" {
__attribute__((visibility("default"))) emulator::Index emulator_thread_index, emulator_block_index;
__attribute__((visibility("default"))) emulator::Extent emulator_block_dim, emulator_grid_dim;
}

namespace emulator {

Machine machine;
Thread threads[kMostThreads];
Warp warps[kMostWarps];

static Fiber scheduler;
static void (*thread_body)(void*);
static void* thread_arguments;
static std::vector<unsigned> warp_order;
static uint64_t random_state;

static uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

// ---- Threads.

static void yield() {
  Thread& thread = me();
  settle();
  switch_to(thread.fiber, scheduler);
}

static void mark_ended(Thread& thread) {
  thread.state = State::kEnded;
  Warp& warp = warp_of(thread);
  warp.alive &= ~(1u << thread.lane);
  warp.ready &= ~(1u << thread.lane);
  --machine.alive;
  machine.stuck = machine.barriers = 0;
}

static void run_thread_body() {
  thread_body(thread_arguments);
  settle();
  drop_copies(me());
  mark_ended(me());
  switch_to(me().fiber, scheduler);
  __builtin_unreachable();
}

void kill_thread() {
  me().was_killed = true;
  machine.is_over = true;
  mark_ended(me());
  switch_to(me().fiber, scheduler);
  __builtin_unreachable();
}

void pause_thread() { yield(); }

// The next lane of those that are ready, in the order that was asked for.
static unsigned choose_lane(unsigned ready) {
  if (machine.options.order == 0) return __builtin_ctz(ready);
  if (machine.options.order == 1) return 31 - __builtin_clz(ready);
  unsigned skip = next_random() % __builtin_popcount(ready);
  while (skip-- > 0) ready &= ready - 1;
  return __builtin_ctz(ready);
}

static void run_lane(Thread& thread) {
  const int steps = kMostSteps - logs[thread.lane].count;
  machine.steps_left = steps;
  ++machine.turns;
  machine.current = &thread;
  emulator_thread_index = thread.at;
  switch_to(scheduler, thread.fiber);
  machine.current = nullptr;
  if (thread.state != State::kEnded) machine.stuck += steps - machine.steps_left;
}

// ---- Operations of a warp.

static bool is_same_request(const WarpRequest& a, const WarpRequest& b) {
  return a.mask == b.mask && a.operation == b.operation;
}

// The lanes that wait for the same as this one.
static unsigned find_partners(const Thread& thread) {
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

// __syncwarp: what each of these lanes knows of the others, all of them know now.
static void order_memory(Warp& warp, unsigned lanes) {
  const uint32_t now = ++machine.now;
  if ((warp.alive & ~lanes) == 0) {
    warp.synced = now;
    return;
  }
  if (!warp.has_pairs) memset(warp.pairs, 0, sizeof(warp.pairs));
  warp.has_pairs = true;
  uint32_t known[kLanes] = {};
  for (unsigned a = 0; a < kLanes; ++a) {
    if (!(lanes >> a & 1)) continue;
    for (unsigned b = 0; b < kLanes; ++b)
      known[b] = std::max({known[b], warp.pairs[a][b], lanes >> b & 1 ? now : 0});
  }
  for (unsigned a = 0; a < kLanes; ++a) {
    if (lanes >> a & 1) memcpy(warp.pairs[a], known, sizeof(known));
  }
}

// A thread that ended: did it pass by a place where others wait, or end before it?
static bool has_passed(const Thread& thread, const void* pc) {
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
    if (is_first) result = x;
    else if (operation == kReduceAdd) result += x;
    else if (operation == kReduceMin) result = std::min(result, x);
    else if (operation == kReduceMax) result = std::max(result, x);
    else if (operation == kReduceMinSigned) result = std::min(a, b);
    else if (operation == kReduceMaxSigned) result = std::max(a, b);
    else if (operation == kReduceAnd) result &= x;
    else if (operation == kReduceOr) result |= x;
    else if (operation == kReduceXor) result ^= x;
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
  if (operation == kSyncWarp) return order_memory(warp_of(thread), partners);
  if (operation >= kMatrixProduct) {
    const WarpRequest* requests[kLanes] = {};
    for (unsigned lane = 0; lane < kLanes; ++lane)
      requests[lane] = partners >> lane & 1 ? &lanes[lane].warp : nullptr;
    if (operation == kMatrixProduct) multiply_matrices(requests);
    if (operation == kMatrixLoad) load_matrices(requests);
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
static bool try_warp(Thread& thread) {
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
  if (!try_warp(thread)) yield();
  return thread.warp.result;
}

// ---- Barriers of a block.

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

// Opens the barrier for which a thread waits, if enough threads have arrived.
static bool try_barrier(const Thread& waiting) {
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
    thread->state = State::kReady;
    warp_of(*thread).ready |= 1u << thread->lane;
  }
  return true;
}

// Lanes that asked for the active mask, and now all others of the warp wait: those that ask in the
// same place are together.
static bool try_active_mask(Thread& waiting) {
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

// ---- A block.

// Nobody is ready. True: somebody is, now.
static bool resolve() {
  bool is_done = false;
  for (unsigned i = 0; i < machine.threads; ++i) {
    Thread& thread = threads[i];
    machine.current = &thread;
    if (thread.state == State::kAtWarpOperation) is_done |= try_warp(thread);
    machine.current = nullptr;
    if (thread.state == State::kAtActiveMask) is_done |= try_active_mask(thread);
  }
  for (unsigned i = 0; i < machine.threads && !is_done; ++i) {
    if (threads[i].state == State::kAtBarrier) is_done = try_barrier(threads[i]);
  }
  return is_done;
}

// Threads wait for each other, and for nothing that will come.
static void report_deadlock() {
  const Thread* waiting = nullptr;
  for (unsigned i = 0; i < machine.threads; ++i) {
    if (threads[i].state == State::kEnded) continue;
    const bool is_warp = threads[i].state == State::kAtWarpOperation;
    if (!waiting || (is_warp && waiting->state != State::kAtWarpOperation)) waiting = &threads[i];
  }
  machine.current = const_cast<Thread*>(waiting);
  const bool is_warp = waiting->state == State::kAtWarpOperation;
  Fault fault = fault_here(is_warp ? "mask" : "barrier", waiting->pc);
  if (is_warp) {
    add_fact(fault, "operation", waiting->warp.operation);
    add_fact(fault, "mask", waiting->warp.mask);
    add_fact(fault, "missing", waiting->warp.mask & warp_of(*waiting).alive & ~find_partners(*waiting));
    add_fact(fault, "why", "wait elsewhere");
  }
  add_fact(fault, "is_deadlock", 1);
  add_positions(fault);
  report(fault);
  machine.current = nullptr;
}

static void report_hang(Thread& thread) {
  if (machine.is_hanging) return;  // it has been reported
  machine.current = &thread;
  Fault fault = fault_here("hang", thread.pc);
  add_fact(fault, "steps", machine.options.steps);
  add_positions(fault);
  report(fault);
  machine.current = nullptr;
}

// Many steps, or many barriers, and no thread has ended. After a fault others may wait in vain.
static bool is_hanging() {
  const uint64_t most = machine.is_over ? kMostSteps * kMostThreads : machine.options.steps;
  return machine.is_hanging || machine.stuck > most || machine.barriers > most / 256;
}

// Runs the threads of a warp until all of them wait or end, or had their share of steps. False: it
// is time to give up.
static bool run_warp(unsigned number) {
  Warp& warp = warps[number];
  unsigned had_turn = 0;
  while (const unsigned ready = warp.ready & ~had_turn) {
    Thread& thread = threads[number * kLanes + choose_lane(ready)];
    run_lane(thread);
    if (thread.state == State::kReady) had_turn |= 1u << thread.lane;  // it has run for long
    if (is_hanging()) {
      report_hang(thread);
      return false;
    }
    if (thread.state == State::kEnded) {  // others may have waited only for it
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        Thread& other = threads[number * kLanes + lane];
        if (!(warp.alive >> lane & 1) || other.state != State::kAtWarpOperation) continue;
        machine.current = &other;
        try_warp(other);
        machine.current = nullptr;
      }
    }
  }
  replay();
  return true;
}

static void prepare_thread(unsigned number) {
  Thread& thread = threads[number];
  const Extent& block = machine.launch.block;
  thread.at = {number % block.x, number / block.x % block.y, number / block.x / block.y};
  thread.number = number;
  thread.lane = number % kLanes;
  thread.state = State::kReady;
  thread.was_killed = false;
  thread.pc = thread.last_access = nullptr;
  thread.last_load = 0;
  thread.device_fence = thread.block_fence = 0;
  thread.frames.clear();
  drop_copies(thread);
  give_stack(thread.fiber, number);
  prepare(thread.fiber, run_thread_body);
}

static void prepare_block(uint64_t linear) {
  machine.block_number = linear;
  machine.block = block_index(linear);
  emulator_block_index = machine.block;
  machine.block_begin = machine.barrier = ++machine.now;
  machine.device_fence = machine.block_fence = 0;
  machine.met_device_fence = machine.met_block_fence = 0;
  machine.alive = machine.threads;
  machine.stuck = machine.barriers = 0;
  machine.is_hanging = false;
  note_block(machine.now);
  for (unsigned i = 0; i < machine.threads; ++i) prepare_thread(i);
  for (unsigned i = 0; i < machine.warps; ++i) {
    const unsigned lanes = std::min(kLanes, machine.threads - i * kLanes);
    Warp& warp = warps[i];
    warp.exist = warp.alive = warp.ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warp.synced = 0;
    warp.has_pairs = false;
  }
}

Index block_index(uint64_t linear) {
  const Extent& grid = machine.launch.grid;
  return {unsigned(linear % grid.x), unsigned(linear / grid.x % grid.y),
          unsigned(linear / grid.x / grid.y)};
}

static void order_warps() {
  warp_order.resize(machine.warps);
  for (unsigned i = 0; i < machine.warps; ++i) warp_order[i] = i;
  if (machine.options.order == 1) std::reverse(warp_order.begin(), warp_order.end());
  for (unsigned i = machine.warps; machine.options.order == 2 && i > 1; --i)
    std::swap(warp_order[i - 1], warp_order[next_random() % i]);
}

static void run_block(uint64_t linear) {
  prepare_block(linear);
  order_warps();
  while (machine.alive > 0) {
    bool has_run = false;
    for (const unsigned warp : warp_order) {
      if (!warps[warp].ready) continue;
      has_run = true;
      if (!run_warp(warp)) return;
    }
    if (!has_run && !resolve()) {
      if (!machine.is_over) report_deadlock();
      machine.is_over = true;
      replay();
      return;
    }
  }
}

// ---- A launch.

static void order_blocks(std::vector<uint32_t>& order, uint64_t count) {
  if (machine.options.order != 2) return;
  order.resize(count);
  for (uint64_t i = 0; i < count; ++i) order[i] = i;
  for (uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
}

bool run_launch(const LaunchConfig& config, void (*body)(void*), void* arguments) {
  machine.launch = config;
  machine.kernel = static_cast<const char*>(config.kernel) + (config.kernel ? 1 : 0);
  machine.is_over = false;
  machine.threads = config.block.x * config.block.y * config.block.z;
  machine.warps = (machine.threads + kLanes - 1) / kLanes;
  machine.launch_begin = machine.block_begin = machine.barrier = ++machine.now;
  emulator_block_dim = config.block;
  emulator_grid_dim = config.grid;
  thread_body = body;
  thread_arguments = arguments;
  random_state = machine.options.seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  forget_releases();
  forget_frames();
  const uint64_t blocks = uint64_t(config.grid.x) * config.grid.y * config.grid.z;
  std::vector<uint32_t> order;
  order_blocks(order, blocks);
  const SignalGuard guard;
  for (uint64_t i = 0; i < blocks && !machine.is_over; ++i) {
    const uint64_t backward = machine.options.order == 1 ? blocks - 1 - i : i;
    run_block(order.empty() ? backward : order[i]);
  }
  machine.was_ended |= machine.is_over;
  fflush(stdout);
  return !machine.is_over;
}

}  // namespace emulator
