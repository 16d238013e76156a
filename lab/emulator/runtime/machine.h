// A GPU as far as a kernel can see it: a thread is a fiber, 32 of them are a warp, warps are a
// block, and one block runs at a time. schedule.cpp runs it, watch.cpp and count.cpp look on.
#pragma once
#include <stdint.h>

#include <vector>

#include "emulator/runtime.h"
#include "fibers.h"

namespace emulator {

constexpr unsigned kMostSteps = 1 << 13;  // of a thread, until others run
constexpr unsigned kLanes = 32, kMostThreads = 1024, kMostWarps = kMostThreads / kLanes;

// CUDA's numbers.
enum Error {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidConfiguration = 9,
  kLaunchFailure = 719,
  kNotSupported = 801
};

struct Index {
  unsigned x, y, z;
};

enum class State : uint8_t { kReady, kAtBarrier, kAtWarpOperation, kAtActiveMask, kEnded };

// An operation of a warp in which a thread waits for others.
struct WarpRequest {
  int operation;
  unsigned mask;
  uint64_t value, result;  // a number, or where a lane's registers are
  int lane, width;         // of a shuffle
};

struct BarrierRequest {
  int id, threads, predicate, how, result;
};

// cp.async: the bytes are taken when the copy starts, and arrive when the thread waits for it.
struct Copy {
  uintptr_t to;
  unsigned bytes;
  const void* pc;
  char data[16];
};

// A call of a function that was not inlined.
struct OpenCall {
  uint16_t number;  // of its frame: flow.cpp
  uintptr_t stack;  // where the stack stood as the function was entered
};

// The way of a thread through the code, in each function that has not ended: the block it came to.
struct Step {
  uint16_t frame, block;
};
using Walk = std::vector<Step>;

// A plain load.
struct Load {
  uintptr_t address;
  const void* pc;
};

struct Thread {
  Fiber fiber;
  Index at;               // threadIdx
  unsigned number, lane;  // in the block, in the warp
  State state;
  bool was_killed;
  const void* pc;           // where it stands or waits
  const void* last_access;  // the last instruction that touched memory
  uintptr_t last_load;      // the address from which it loaded
  Load loads[2];            // the last ones since a barrier, the latest first
  WarpRequest warp;
  BarrierRequest barrier;
  const void* passed[4];               // barriers at which it has waited
  uint32_t device_fence, block_fence;  // times of the last ones
  std::vector<OpenCall> frames;
  Walk walk;
  std::vector<Copy> copies;
  std::vector<unsigned> batches;  // copies of each batch that has been committed; not yet awaited
  unsigned in_batch;              // copies of the open batch

  unsigned warp_number() const { return number / kLanes; }
};

struct Warp {
  unsigned exist, alive, ready;  // a bit for each lane
  uint32_t synced;               // when all lanes last met in __syncwarp
  bool has_pairs;                // some met without the others: pairs[a][b] is when a last met b
  uint32_t pairs[kLanes][kLanes];
};

// What run() asks for.
struct Options {
  int order;  // of threads: 0 forward, 1 backward, 2 random
  int counts, faults;
  uint64_t seed, steps;
};

// The launch and the block that run now. Times count events that order threads: a block's start, a
// barrier, a __syncwarp, a fence.
struct Machine {
  Options options = {0, 1, 1, 0, uint64_t(1) << 25};
  bool is_watching = false;  // between begin and end of a run
  LaunchConfig launch = {};
  const void* kernel = nullptr;  // the first instruction seen in it
  bool has_started = false;
  int launch_number = 0;  // of this run
  Index block = {};
  uint64_t block_number = 0;  // in the order in which blocks run
  unsigned threads = 0, warps = 0, alive = 0;
  Thread* current = nullptr;  // null: host code runs
  uint32_t now = 2, launch_begin = 2, block_begin = 2, barrier = 2;
  uint32_t device_fence = 0, block_fence = 0;          // the last ones in this block
  uint32_t met_device_fence = 0, met_block_fence = 0;  // those before its last barrier
  int steps_left = 0;                                  // before the current thread lets others run
  uint64_t turns = 0;                                  // of threads that ran until they waited
  uint64_t stuck = 0;     // steps since a thread ended or a barrier opened
  uint64_t barriers = 0;  // since a thread ended
  bool is_hanging = false;
  bool is_busy = false;  // the emulator itself works for long, so the threads do not hang
  int error = 0, sticky_error = 0;
  bool is_over = false;          // a fault has ended the launch
  bool was_ended = false;        // of any launch of this run
  bool has_host_access = false;  // in this run
};
extern Machine machine;
extern Thread threads[kMostThreads];
extern Warp warps[kMostWarps];

inline Thread& me() { return *machine.current; }
inline Warp& warp_of(const Thread& thread) { return warps[thread.warp_number()]; }

// schedule.cpp
bool run_launch(const LaunchConfig& config, void (*body)(void*), void* arguments);
[[noreturn]] void kill_thread();  // ends the current thread; the launch ends with its block
void pause_thread();              // others run before it goes on
inline void count_step() {
  if (--machine.steps_left <= 0) pause_thread();
}
Index block_index(uint64_t linear);

// python.cpp
void end_launcher(int status);  // -1: it has aborted; returns if none runs in this thread

// launch.cpp
void begin_kernel(const void* pc);         // its first thread begins
void prepare_dynamic_shared();             // a block begins
bool is_in_kernel(const char* operation);  // a fault if not

}  // namespace emulator
