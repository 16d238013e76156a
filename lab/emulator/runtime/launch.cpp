// A launch as the CUDA runtime sees it: what it refuses, its shared memory, its variables.
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <string>

#include "count.h"
#include "faults.h"
#include "machine.h"
#include "memory.h"
#include "order.h"
#include "results.h"
#include "watch.h"

using namespace emulator;

// All of it that a block can have, from 227 KB of an H100 on, and what an index may go too far.
constexpr size_t kMostShared = 227 * 1024, kUsualShared = 48 * 1024, kBehind = 64 * 1024;
__attribute__((aligned(1024))) char emulator_dynamic_shared[kMostShared + kBehind];

namespace emulator {

static std::map<const void*, size_t> largest_shared;  // by kernel
static Region* dynamic_shared;
static uint32_t next_shared_address = 1 << 20;  // behind the dynamic ones

static void report_refusal(const LaunchConfig& config, int error, const char* why, int64_t found,
                           int64_t most) {
  machine.error = error;
  Fault fault = fault_here("launch", nullptr);
  fault.has_thread = false;
  if (config.file) {
    add_fact(fault, "file", config.file);
    add_fact(fault, "line", config.line);
  }
  add_fact(fault, "text", config.text ? config.text : "");
  add_fact(fault, "why", why);
  add_fact(fault, "found", found);
  add_fact(fault, "most", most);
  add_fact(fault, "error", emulator_error_text(error));
  report(fault);
}

static bool is_possible(const LaunchConfig& config) {
  const Extent &grid = config.grid, &block = config.block;
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  const auto refuse = [&](int error, const char* why, int64_t found, int64_t most) {
    report_refusal(config, error, why, found, most);
    return false;
  };
  if (threads == 0) return refuse(kInvalidConfiguration, "no threads", 0, kMostThreads);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return refuse(kInvalidConfiguration, "no blocks", 0, INT32_MAX);
  if (block.x > 1024) return refuse(kInvalidConfiguration, "threads in x", block.x, 1024);
  if (block.y > 1024) return refuse(kInvalidConfiguration, "threads in y", block.y, 1024);
  if (block.z > 64) return refuse(kInvalidConfiguration, "threads in z", block.z, 64);
  if (threads > kMostThreads)
    return refuse(kInvalidConfiguration, "threads", threads, kMostThreads);
  if (grid.x > INT32_MAX) return refuse(kInvalidConfiguration, "blocks in x", grid.x, INT32_MAX);
  if (grid.y > 65535) return refuse(kInvalidConfiguration, "blocks in y", grid.y, 65535);
  if (grid.z > 65535) return refuse(kInvalidConfiguration, "blocks in z", grid.z, 65535);
  if (config.shared > kMostShared)
    return refuse(kInvalidValue, "shared memory", config.shared, kMostShared);
  if (config.cluster > 1) return refuse(kNotSupported, "cluster", config.cluster, 1);
  return true;
}

// The kernel is often known by its address only once it runs, as a launch names it by a call.
void begin_kernel(const void* pc) {
  if (machine.launch.kernel) pc = static_cast<const char*>(machine.launch.kernel) + 1;
  machine.has_started = true;
  machine.kernel = pc;
  code_begin = reinterpret_cast<uintptr_t>(pc) - (uintptr_t(1) << 31);
  if (machine.launch.shared <= kUsualShared) return;
  size_t most = kUsualShared;
  const auto after = largest_shared.upper_bound(pc);
  if (after != largest_shared.begin()) {
    const auto& [kernel, bytes] = *std::prev(after);
    const auto far = static_cast<const char*>(pc) - static_cast<const char*>(kernel);
    if (far < 512) most = bytes;
  }
  if (machine.launch.shared <= most) return;
  report_refusal(machine.launch, kInvalidValue, "shared memory without permission",
                 machine.launch.shared, most);
  kill_thread();
}

static void prepare_shared(size_t bytes) {
  if (!dynamic_shared) {
    Region region;
    region.begin = reinterpret_cast<uintptr_t>(emulator_dynamic_shared);
    region.bytes = sizeof(emulator_dynamic_shared);
    region.space = Space::kShared;
    region.is_initialized = false;
    region.name = "dynamic shared memory";
    dynamic_shared = add_region(region);
    prepare_cells(*dynamic_shared);
    region.is_padding = true;  // all of it, where the launch gave less
    add_region(region);
  }
  dynamic_shared->bytes = bytes;
}

}  // namespace emulator

EMULATOR_API bool emulator_launch(const LaunchConfig* config, void (*body)(void*),
                                  void* arguments) {
  if (machine.current) {
    Fault fault = fault_here("needs a GPU", __builtin_return_address(0));
    add_fact(fault, "text", "a launch within a kernel");
    report_and_kill(fault);
  }
  if (!is_possible(*config)) return false;
  prepare_shared(config->shared);
  machine.has_started = false;
  run_launch(*config, body, arguments);
  if (machine.error == 0 && machine.is_over) machine.sticky_error = kLaunchFailure;
  keep_counts();
  ++machine.launch_number;
  return machine.error == 0;
}

EMULATOR_API void emulator_launch_bounds(unsigned most) {
  if (!machine.current || machine.threads <= most || machine.is_over) return;
  report_refusal(machine.launch, kInvalidValue, "launch bounds", machine.threads, most);
  kill_thread();
}

// What a block finds in shared memory is left to chance. Here it is NaN, or -1, so that a thread
// that reads too early shows.
static void poison(Region& region) {
  if (region.poisoned == machine.block_begin) return;
  region.poisoned = machine.block_begin;
  memset(reinterpret_cast<void*>(region.begin), 255, region.bytes);
}

void emulator::prepare_dynamic_shared() {
  if (dynamic_shared->bytes > 0) poison(*dynamic_shared);
}

static Region& add_shared(uintptr_t memory, size_t memory_bytes, uintptr_t array, size_t bytes,
                          size_t element, const char* name) {
  Region padding;
  padding.begin = memory;
  padding.bytes = memory_bytes;
  padding.space = Space::kShared;
  padding.is_padding = true;
  add_region(padding);
  Region found = padding;
  found.is_padding = false;
  found.begin = array;
  found.bytes = bytes;
  found.is_initialized = false;
  found.name = strdup(name);
  found.element = unsigned(element);
  found.shared_address = next_shared_address;
  next_shared_address += (bytes + 2047) / 1024 * 1024;
  Region& region = *add_region(found);
  prepare_cells(region);
  return region;
}

// An array in shared memory: each thread passes its declaration.
EMULATOR_API void emulator_shared(void* memory, size_t memory_bytes, void* array, size_t bytes,
                                  size_t element, const char* name) {
  const auto address = reinterpret_cast<uintptr_t>(array);
  Region* region = find_region(address);
  if (!region || region->is_padding || region->space != Space::kShared)
    region = &add_shared(reinterpret_cast<uintptr_t>(memory), memory_bytes, address, bytes, element,
                         name);
  poison(*region);
}

EMULATOR_API uint32_t emulator_shared_address(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto dynamic = reinterpret_cast<uintptr_t>(emulator_dynamic_shared);
  if (address - dynamic < sizeof(emulator_dynamic_shared))
    return uint32_t(address - dynamic + 1024);
  const Region* region = find_region(address);
  if (!region || region->space != Space::kShared || region->is_padding)
    region = find_region(address - 1);  // just behind an array
  if (!region || region->space != Space::kShared) return 0;
  return region->shared_address + uint32_t(address - region->begin);
}

EMULATOR_API void* emulator_shared_pointer(uint32_t address) {
  if (address < 1024) return reinterpret_cast<void*>(uintptr_t(address));  // null and near it
  if (address - 1024 < sizeof(emulator_dynamic_shared))
    return emulator_dynamic_shared + address - 1024;
  const Region* region = shared_region_at(address);
  if (!region) return reinterpret_cast<void*>(uintptr_t(1));
  return reinterpret_cast<void*>(region->begin + address - region->shared_address);
}

EMULATOR_API uint64_t emulator_clock() {
  static uint64_t ticks;
  return ticks += 4;
}

EMULATOR_API void emulator_trap() {
  if (!machine.current) abort();
  report_and_kill(fault_here("trap", __builtin_return_address(0)));
}

EMULATOR_API void emulator_needs_gpu(const char* what) {
  Fault fault = fault_here("needs a GPU", __builtin_return_address(0));
  add_fact(fault, "text", what);
  if (machine.current) report_and_kill(fault);
  report(fault);
}

// Outside of a kernel there is no other thread to meet.
bool emulator::is_in_kernel(const char* what) {
  if (machine.current) return true;
  Fault fault = fault_here("not in a kernel", nullptr);
  add_fact(fault, "text", what);
  report(fault);
  return false;
}

EMULATOR_API void emulator_fence(int scope) {
  if (!machine.current) return;
  settle();
  on_fence(scope > 0);
}

// ---- Variables and errors.

EMULATOR_API void emulator_variable(void* address, size_t bytes, size_t element, int is_constant,
                                    const char* name) {
  Region region;
  region.begin = reinterpret_cast<uintptr_t>(address);
  region.bytes = bytes;
  region.space = is_constant ? Space::kConstant : Space::kGlobal;
  region.name = name;
  region.element = unsigned(element);
  Region* added = add_region(region);
  if (!is_constant) prepare_cells(*added);
}

EMULATOR_API int emulator_last_error(int clear) {
  const int error = machine.error;
  if (clear) machine.error = 0;
  return error;
}
EMULATOR_API void emulator_set_error(int error) {
  if (error) machine.error = error;
}

EMULATOR_API int emulator_synchronize() {
  return machine.error ? machine.error : machine.sticky_error;
}

EMULATOR_API size_t emulator_largest_shared(const void* kernel, int bytes) {
  if (bytes >= 0) largest_shared[kernel] = bytes;
  const auto found = largest_shared.find(kernel);
  return found == largest_shared.end() ? kUsualShared : found->second;
}

// torch's function, for launchers that ask it for the stream. A torch without CUDA has none.
EMULATOR_API int aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

EMULATOR_API const char* emulator_error_text(int error) {
  switch (error) {
    case 0:
      return "no error";
    case 1:
      return "invalid argument";
    case 2:
      return "out of memory";
    case 9:
      return "invalid configuration argument";
    case 100:
      return "no CUDA-capable device is detected";
    case 101:
      return "invalid device ordinal";
    case 600:
      return "device not ready";
    case 700:
      return "an illegal memory access was encountered";
    case 719:
      return "unspecified launch failure";
    case 801:
      return "operation not supported";
    default:
      return "unknown error";
  }
}
