// Runs a launch: block after block, and in a block warp after warp, thread after thread, each until
// it ends or waits for others.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "barriers.h"
#include "copies.h"
#include "count.h"
#include "faults.h"
#include "flow.h"
#include "lanes.h"
#include "machine.h"
#include "order.h"
#include "signals.h"
#include "watch.h"

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

void pause_thread() {
  settle();
  switch_to(me().fiber, scheduler);
}

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

// ---- A block.

// No thread is ready: finds some that need not wait any longer. False if there are none.
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
    add_fact(fault, "missing",
             waiting->warp.mask & warp_of(*waiting).alive & ~find_partners(*waiting));
    add_fact(fault, "why", "wait elsewhere");
  }
  add_fact(fault, "is_deadlock", 1);
  add_positions(fault);
  report(fault);
  machine.current = nullptr;
}

static uint64_t most_steps() {  // after a fault others may wait in vain
  return machine.is_over ? kMostSteps * kMostThreads : machine.options.steps;
}
static bool has_many_barriers() { return machine.barriers > most_steps() / 256; }

static void report_hang(Thread& thread) {
  if (machine.is_hanging) return;  // it has been reported
  machine.current = &thread;
  Fault fault = fault_here("hang", thread.pc);
  add_fact(fault, "steps", most_steps());
  if (has_many_barriers()) add_fact(fault, "barriers", machine.barriers);
  add_positions(fault);
  report(fault);
  machine.current = nullptr;
}

// Many steps without a barrier, or many barriers, and no thread has ended.
static bool is_hanging() {
  return machine.is_hanging || machine.stuck > most_steps() || has_many_barriers();
}

// Runs the threads of a warp until all of them wait or end, or had their share of steps. False: it
// is time to give up.
static bool run_warp(unsigned number) {
  Warp& warp = warps[number];
  unsigned had_turn = resume_logs(number);
  while (const unsigned ready = warp.ready & ~had_turn) {
    Thread& thread = threads[number * kLanes + choose_lane(ready)];
    run_lane(thread);
    if (thread.state == State::kReady) had_turn |= 1u << thread.lane;  // it has run for long
    if (is_hanging()) {
      report_hang(thread);
      machine.is_over = true;
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
  replay(number);
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
  thread.loads[0] = thread.loads[1] = {};
  for (const void*& barrier : thread.passed) barrier = nullptr;
  thread.device_fence = thread.block_fence = 0;
  thread.frames.clear();
  thread.walk.clear();
  drop_copies(thread);
  give_stack(thread.fiber, number);
  prepare(thread.fiber, run_thread_body);
}

static void prepare_block(uint64_t linear) {
  forget_logs();
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
  prepare_dynamic_shared();
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
  forget_code();
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
