// CUDA's memory functions: cudaMalloc, cudaFree, cudaMemcpy, cudaMemset, and what they refuse. The
// headers' functions are inlined, so the caller is a line of the user.
#include "allocations.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <map>
#include <new>

#include "machine.h"

using namespace emulator;

#define CALLER __builtin_return_address(0)

namespace emulator {

// Freed memory stays, so that no later allocation lies there and hides a wrong access. What is more
// than this goes back to the system, the oldest first.
constexpr size_t kMostKept = size_t(1) << 28;
constexpr size_t kBehindAllocation = 512;  // bytes between two allocations, where an index may go
enum CopyKind { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };

static std::map<uintptr_t, Freed> freed;  // by the first address
static std::deque<uintptr_t> freed_in_order;
static size_t kept;  // bytes

const Freed* find_freed(uintptr_t address) {
  auto after = freed.upper_bound(address);
  if (after == freed.begin()) return nullptr;
  const Freed& found = std::prev(after)->second;
  return found.region.has(address) ? &found : nullptr;
}

static void forget_oldest() {
  const auto oldest = freed.find(freed_in_order.front());
  freed_in_order.pop_front();
  kept -= oldest->second.region.bytes + kBehindAllocation;
  free(reinterpret_cast<void*>(oldest->first));
  freed.erase(oldest);
}

void forget_freed() {
  while (!freed_in_order.empty()) forget_oldest();
}

Fault host_fault(const char* kind, const void* pc) {
  Fault fault = fault_here(kind, pc);
  fault.kernel = nullptr;
  return fault;
}

void add_region_facts(Fault& fault, const Region& region, uintptr_t address) {
  add_fact(fault, "region", region.name);
  add_fact(fault, "label", region.label);
  add_fact(fault, "offset", address - region.begin);
  add_fact(fault, "size", region.bytes);
  add_fact(fault, "element", region.element);
  add_fact(fault, "space", region.space == Space::kShared ? "shared" : "global");
  if (region.made_by) add_fact(fault, "made_by", reinterpret_cast<intptr_t>(region.made_by));
}

// A copy, or a cudaMemset, whose source is null.
struct Transfer {
  const char* function;
  const void* ends[2];  // to, from
  size_t bytes;
  int kind;
  const void* pc;
};

static bool refuse(const Transfer& transfer, int end, const char* why, const Region* region) {
  if (!machine.is_watching) return false;
  Fault fault = host_fault("copy", transfer.pc);
  fault.address = reinterpret_cast<uintptr_t>(transfer.ends[end]);
  fault.bytes = unsigned(transfer.bytes);
  add_fact(fault, "function", transfer.function);
  add_fact(fault, "why", why);
  add_fact(fault, "end", end ? "source" : "destination");
  add_fact(fault, "direction", transfer.kind);
  if (region) add_region_facts(fault, *region, fault.address);
  if (const Freed* old = region ? nullptr : find_freed(fault.address)) {
    add_region_facts(fault, old->region, fault.address);
    fault.other_pc = old->freed_by;
  }
  report(fault);
  return false;
}

// Whether CUDA would copy: each end lies within one allocation, and where `kind` says. A pointer of
// pinned or managed memory may stand for either side, and a tensor, too, as its launcher knows.
static bool is_possible(const Transfer& transfer) {
  if (transfer.bytes == 0) return true;
  const int kind = transfer.kind;
  const bool is_on_gpu[] = {kind == kHostToDevice || kind == kDeviceToDevice,
                            kind == kDeviceToHost || kind == kDeviceToDevice};
  for (int end = 0; end < 2; ++end) {
    if (!transfer.ends[end]) continue;
    const auto address = reinterpret_cast<uintptr_t>(transfer.ends[end]);
    const Region* region = find_memory(address);
    if (!region && find_freed(address)) return refuse(transfer, end, "freed", nullptr);
    if (!region && is_on_gpu[end] && machine.is_watching)
      return refuse(transfer, end, "host", nullptr);
    if (region && transfer.bytes > region->end() - address)
      return refuse(transfer, end, "size", region);
    if (region && region->is_only_on_gpu && !is_on_gpu[end] && kind != kDefault)
      return refuse(transfer, end, "device", region);
  }
  return true;
}

// Host code has written there.
static void note_written(void* memory, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const Region* region = find_region(address);
  if (!region || !region->cells || bytes == 0) return;
  const uintptr_t offset = address - region->begin;
  for (size_t i = offset >> region->shift; i <= (offset + bytes - 1) >> region->shift; ++i)
    region->cells[i].write = {1, 0, 0};
}

static void refuse_free(const void* memory, const void* pc) {
  if (!machine.is_watching) return;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  Fault fault = machine.current ? fault_here("free", pc) : host_fault("free", pc);
  fault.address = address;
  const Region* region = find_memory(address);
  const Freed* old = find_freed(address);
  if (region || old) add_region_facts(fault, region ? *region : old->region, address);
  if (old && !region) fault.other_pc = old->freed_by;
  report(fault);
}

static void* allocate(size_t bytes, bool is_only_on_gpu, const void* pc) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 512, std::max<size_t>(bytes, 1) + kBehindAllocation)) return nullptr;
  memset(memory, 255, bytes);  // as shared memory
  Region region;
  region.begin = reinterpret_cast<uintptr_t>(memory);
  region.bytes = bytes;
  region.is_initialized = false;
  region.is_only_on_gpu = is_only_on_gpu;
  region.made_by = pc;
  region.name = "an allocation";
  prepare_cells(*add_region(region));
  if (!is_only_on_gpu) note_written(memory, bytes);  // host code may write there unseen
  return memory;
}

static int give_back(void* memory, const void* pc) {
  if (!memory) return 0;
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const Region* region = find_memory(begin);
  if (!region || region->begin != begin || !region->made_by) {
    refuse_free(memory, pc);
    return kInvalidValue;
  }
  Freed& entry = freed[begin];
  entry = {*region, pc};
  entry.region.cells = nullptr;
  kept += region->bytes + kBehindAllocation;
  freed_in_order.push_back(begin);
  remove_region(begin);
  while (kept > kMostKept || (!machine.is_watching && kept > 0)) forget_oldest();
  return 0;
}

}  // namespace emulator

EMULATOR_API void* emulator_allocate(size_t bytes, bool is_only_on_gpu) {
  return allocate(bytes, is_only_on_gpu, CALLER);
}

EMULATOR_API int emulator_free(void* memory) { return give_back(memory, CALLER); }

// malloc(), free(), new and delete: in a kernel they take memory of the GPU. The linker passes all
// of a library's calls on to these.
#define ALLOCATES(name, by_host)                                      \
  EMULATOR_API void* __wrap_##name(size_t bytes) {                    \
    return machine.current ? allocate(bytes, true, CALLER) : by_host; \
  }
#define FREES(name, parameters, by_host)       \
  EMULATOR_API void __wrap_##name parameters { \
    if (machine.current)                       \
      give_back(memory, CALLER);               \
    else                                       \
      by_host;                                 \
  }
ALLOCATES(malloc, malloc(bytes))
ALLOCATES(_Znwm, ::operator new(bytes))
ALLOCATES(_Znam, ::operator new[](bytes))
FREES(free, (void* memory), free(memory))
FREES(_ZdlPv, (void* memory), ::operator delete(memory))
FREES(_ZdaPv, (void* memory), ::operator delete[](memory))
FREES(_ZdlPvm, (void* memory, size_t), ::operator delete(memory))
FREES(_ZdaPvm, (void* memory, size_t), ::operator delete[](memory))

EMULATOR_API int emulator_memory_copy(void* to, const void* from, size_t bytes, int kind,
                                      const char* function) {
  if (!is_possible({function, {to, from}, bytes, kind, CALLER})) return kInvalidValue;
  memmove(to, from, bytes);
  note_written(to, bytes);
  return 0;
}

EMULATOR_API int emulator_memory_set(void* to, int value, size_t bytes, const char* function) {
  if (!is_possible({function, {to, nullptr}, bytes, kHostToDevice, CALLER})) return kInvalidValue;
  memset(to, value, bytes);
  note_written(to, bytes);
  return 0;
}

// A copy of rows that are longer than what lies between their beginnings.
EMULATOR_API int emulator_refuse_pitch(size_t width, size_t pitch, const char* function) {
  if (!machine.is_watching) return kInvalidValue;
  Fault fault = host_fault("copy", CALLER);
  add_fact(fault, "function", function);
  add_fact(fault, "why", "pitch");
  add_fact(fault, "width", width);
  add_fact(fault, "pitch", pitch);
  report(fault);
  return kInvalidValue;
}
