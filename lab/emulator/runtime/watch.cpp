// The check before each access: is it inside of something, was that written, does it race?
#include "watch.h"

#include <string.h>

#include <algorithm>

#include "allocations.h"
#include "count.h"
#include "faults.h"
#include "order.h"

namespace emulator {

// ---- Faults of an access.

static const char* word_of(const Access& access) {
  if (access.kind == Kind::kAtomic) return "atomic";
  return access.kind == Kind::kStore || access.kind == Kind::kArrival ? "write" : "read";
}

static Fault fault_of(const char* kind, const Access& access, const void* pc,
                      const Region* region) {
  Fault fault = fault_here(kind, pc);
  fault.access = word_of(access);
  fault.address = access.address;
  fault.bytes = access.bytes;
  if (region) add_region_facts(fault, *region, access.address);
  return fault;
}

[[noreturn]] static void report_outside(const Access& access, const void* pc) {
  if (access.address < 65536) report_and_kill(fault_of("null pointer", access, pc, nullptr));
  if (const Freed* old = find_freed(access.address)) {
    Fault fault = fault_of("use after free", access, pc, &old->region);
    fault.other_pc = old->freed_by;
    report_and_kill(fault);
  }
  for (unsigned i = 0; i < machine.threads; ++i) {
    if (access.address - threads[i].fiber.stack >= kStackBytes) continue;
    Fault fault = fault_of("out of bounds", access, pc, nullptr);
    add_fact(fault, "local_of", i);
    report_and_kill(fault);
  }
  report_and_kill(fault_of("out of bounds", access, pc, nearest_region(access.address)));
}

// It is reported once and does not end the thread: it may be a variable of the kernel after all,
// which its name says: lines.py.
static void report_host_variable(const Access& access, const void* pc) {
  if (count_again("out of bounds", pc, nullptr, false)) return;
  Fault fault = fault_of("out of bounds", access, pc, nullptr);
  add_fact(fault, "variable_at", access.address);
  report(fault);
}

static void report_uninitialized(const Access& access, const void* pc, const Region& region) {
  if (count_again("uninitialized", pc, nullptr, false)) return;
  report(fault_of("uninitialized", access, pc, &region));
}

// Between what the current thread does and what another one has done.
static void report_pair(const char* kind, const Access& access, const void* pc,
                        const Region& region, const Touch& other, bool is_read) {
  const void* other_pc = instruction_of(other.instruction).pc;
  if (count_again(kind, pc, other_pc, is_same_warp(other))) return;
  Fault fault = fault_of(kind, access, pc, &region);
  add_other(fault, other);
  const bool is_atomic = other.thread & kIsAtomic;
  add_fact(fault, "other_access", is_read ? "read" : is_atomic ? "atomic" : "write");
  if (access.kind == Kind::kLoad && is_atomic) fault.racing_load = pc;
  if (access.kind == Kind::kAtomic && is_read) fault.racing_load = other_pc;
  fault.is_note = strcmp(kind, "same value") == 0;
  report(fault);
}

// A write that races may leave what is there: then no thread can tell. That is known once the
// thread has written, when it next meets a check.
static struct {
  bool is_open;
  Access access;
  const void* pc;
  const Region* region;
  Touch other;
  bool is_read;
  char before[16];
} suspicion;

void settle() {
  if (!suspicion.is_open) return;
  suspicion.is_open = false;
  const auto* now = reinterpret_cast<const void*>(suspicion.access.address);
  const bool is_same = memcmp(now, suspicion.before, suspicion.access.bytes) == 0;
  report_pair(is_same ? "same value" : "race", suspicion.access, suspicion.pc, *suspicion.region,
              suspicion.other, suspicion.is_read);
}

static void suspect(const Access& access, const void* pc, const Region& region, const Touch& other,
                    bool is_read) {
  if (access.bytes > sizeof(suspicion.before) || access.kind != Kind::kStore)
    return report_pair("race", access, pc, region, other, is_read);
  suspicion.is_open = true;
  suspicion.access = access;
  suspicion.pc = pc;
  suspicion.region = &region;
  suspicion.other = other;
  suspicion.is_read = is_read;
  memcpy(suspicion.before, reinterpret_cast<const void*>(access.address), access.bytes);
}

// ---- Watching.

static inline bool is_written(const Region& region, const Touch& write) {
  if (region.space == Space::kShared) return write.time >= machine.block_begin;
  return write.time > 0 || region.is_initialized;
}

// Whether a later write of this block might not be ordered after an access.
static inline bool is_open(const Touch& touch) {
  if (touch.time >= machine.barrier) return true;
  return touch.time < machine.block_begin && touch.time >= machine.launch_begin;
}

static inline bool is_far(const Touch& touch, const Touch& from) {
  if (touch.time < machine.block_begin) return true;  // of another block
  return ((touch.thread ^ from.thread) & kThreadBits & ~(kLanes - 1)) != 0;
}

// Keeps two readers, of different warps or blocks if there are any: a later write may be ordered
// after one and not after the other.
static inline void note_read(Cell& cell, const Touch& touch) {
  const Touch last = cell.read;
  cell.read = touch;
  if (last.time == 0 || !is_open(last)) return;
  const bool is_same_block = last.time >= machine.block_begin;
  if (is_same_block && ((last.thread ^ touch.thread) & kThreadBits) == 0) return;
  const Touch& other = cell.other_read;
  if (other.time == 0 || !is_open(other) || (is_far(last, touch) && !is_far(other, touch)))
    cell.other_read = last;
}

static void watch_load(Region& region, const Access& access, const Touch& touch, size_t first,
                       size_t last, const void* pc) {
  size_t missing = 0;
  bool has_reported = false;
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = region.cells[i];
    const Touch& write = cell.write;
    if (!is_written(region, write)) {
      ++missing;
    } else if (write.time && !has_reported) {
      if ((write.thread & kInFlight) && write.time >= machine.block_begin) {
        report_pair("missing wait", access, pc, region, write, false);
        has_reported = true;
      } else if (!is_before(write) && !may_meet(write, access, region)) {
        report_pair("race", access, pc, region, write, false);
        has_reported = true;
      }
    }
    note_read(cell, touch);
  }
  // A copy of a whole struct may take its padding along.
  if (missing > 0 && (access.unit == 0 || missing == last - first + 1))
    report_uninitialized(access, pc, region);
}

// The plain store that an atomic operation would hide: it races with the other blocks' atomics,
// too. It is kept where a reader is, which a later write must not meet either.
static Touch plain_store_of(const Cell& cell, const Region& region) {
  const uint32_t since = region.space == Space::kShared ? machine.barrier : machine.launch_begin;
  if (cell.other_read.thread & kWasStore && cell.other_read.time >= since) return cell.other_read;
  Touch store = cell.write;
  if (store.time < since || store.thread & (kIsAtomic | kInFlight)) return {};
  store.thread |= kWasStore;
  return store;
}

static void watch_store(Region& region, const Access& access, const Touch& touch, size_t first,
                        size_t last, const void* pc) {
  bool has_reported = false;
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = region.cells[i];
    if (!has_reported) {
      const Touch *other = nullptr, *reader = nullptr;
      const bool is_here = region.space != Space::kShared || cell.write.time >= machine.block_begin;
      if (cell.write.time && is_here && !is_before(cell.write) &&
          !may_meet(cell.write, access, region))
        other = &cell.write;
      for (const Touch* read : {&cell.read, &cell.other_read}) {
        if (!read->time || (region.space == Space::kShared && read->time < machine.block_begin))
          continue;
        if (!is_before(*read) && !may_meet(*read, access, region)) reader = read;
      }
      if (other || reader) {
        const bool is_read = !other && !(reader->thread & kWasStore);
        suspect(access, pc, region, other ? *other : *reader, is_read);
        has_reported = true;
      }
    }
    cell.other_read = touch.thread & kIsAtomic ? plain_store_of(cell, region) : Touch{};
    cell.read = {};
    cell.write = touch;
  }
}

static void watch(Region& region, const Access& access, const Instruction& instruction) {
  const uintptr_t offset = access.address - region.begin;
  const unsigned uneven = (offset | access.bytes) & ((1u << region.shift) - 1);
  if (uneven) split_cells(region, uneven & 1 ? 0 : 1);
  const size_t first = offset >> region.shift;
  const size_t last = (offset + access.bytes - 1) >> region.shift;
  Touch touch = {machine.now, static_cast<uint16_t>(me().number), instruction.number};
  if (access.is_volatile) touch.thread |= kIsVolatile;
  const void* pc = instruction.pc;
  if (access.kind != Kind::kStore && access.kind != Kind::kAtomic &&
      access.kind != Kind::kArrival) {
    watch_load(region, access, touch, first, last, pc);
    if (access.is_volatile) on_acquire(access.address);
    return;
  }
  region.was_written = true;
  if (access.kind == Kind::kAtomic) {
    touch.thread |= kIsAtomic;
    for (size_t i = first; i <= last; ++i) {
      if (is_written(region, region.cells[i].write)) continue;
      report_uninitialized(access, pc, region);
      break;
    }
    on_acquire(access.address);
  }
  if (access.kind == Kind::kArrival) touch.thread |= kInFlight;
  watch_store(region, access, touch, first, last, pc);
  if (access.kind == Kind::kAtomic || access.is_volatile) on_release(access.address);
}

// ---- The check before each access.

// x += 1 is a load and a store of the same address, with at most one load between them.
static void note_update(Thread& thread, const Access& access, Instruction& instruction) {
  if (access.kind == Kind::kLoad) {
    thread.loads[1] = thread.loads[0];
    thread.loads[0] = {access.address, instruction.pc};
    return;
  }
  if (access.kind != Kind::kStore) return;
  for (Load& load : thread.loads) {
    if (load.address != access.address) continue;
    instruction.is_of_update = instruction_at(load.pc).is_of_update = true;
    load = {};
  }
}

void on_access(const Access& access, const void* pc) {
  settle();
  count_step();
  Thread& thread = me();
  // old = *address; while (...) old = atomicCAS(address, old, ...), or the same with atomicMin and
  // atomicMax: such a load may see anything. (emulator_atomic() has forgotten it for the others.)
  if (access.kind == Kind::kAtomic && access.address == thread.last_load)
    instruction_at(thread.last_access).is_before_atomic = true;
  thread.last_load = access.kind == Kind::kLoad ? access.address : 0;
  thread.last_access = pc;
  if (access.address - thread.fiber.stack < kStackBytes) return;  // its own local memory
  Instruction& instruction = instruction_at(pc);
  Region* region = instruction.region;
  if (!region || !region->has(access.address)) {
    region = find_region(access.address);
    if (!region || region->is_padding) report_outside(access, pc);
    instruction.region = region;
  }
  if (region->is_of_host) report_host_variable(access, pc);
  if (region->end() - access.address < access.bytes) report_outside(access, pc);
  if (machine.options.faults && region->cells) {
    note_update(thread, access, instruction);
    watch(*region, access, instruction);
  }
  if (access.kind != Kind::kArrival) log_access(access, region->space, pc);
}

// On a GPU tensors and allocations are not the host's memory. Only the first access of a run is
// kept.
void on_host_access(const Access& access, const void* pc) {
  const Region* region = find_memory(access.address);
  const Freed* old = region ? nullptr : find_freed(access.address);
  const bool is_on_gpu = region && (region->label >= 0 || region->is_only_on_gpu);
  if (!is_on_gpu && !old) return;
  machine.has_host_access = true;
  Fault fault =
      fault_of(old ? "use after free" : "host access", access, pc, old ? &old->region : region);
  fault.kernel = nullptr;
  if (old) fault.other_pc = old->freed_by;
  report(fault);
}

void check_arrival(const Copy& copy) {
  Region* region = find_region(copy.to);
  if (!region || !region->cells || !machine.options.faults) return;
  const uintptr_t offset = copy.to - region->begin;
  const Touch touch = {machine.now, static_cast<uint16_t>(me().number),
                       instruction_at(copy.pc).number};
  for (size_t i = offset >> region->shift; i <= (offset + copy.bytes - 1) >> region->shift; ++i) {
    region->cells[i].write = touch;
  }
}

}  // namespace emulator
