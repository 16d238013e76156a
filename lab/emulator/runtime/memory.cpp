#include "memory.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "count.h"
#include "faults.h"

namespace emulator {

// ---- Instructions, found by the address to which their check returns.

static std::deque<Instruction> instructions;
static std::unordered_map<const void*, Instruction*> by_pc;
static Instruction* recent[4096];

Instruction& instruction_at(const void* pc) {
  Instruction*& found = recent[reinterpret_cast<uintptr_t>(pc) / 4 % 4096];
  if (found && found->pc == pc) return *found;
  Instruction*& known = by_pc[pc];
  if (!known) {
    instructions.emplace_back();
    known = &instructions.back();
    known->pc = pc;
    known->number = static_cast<uint16_t>(std::min<size_t>(instructions.size() - 1, 65535));
  }
  found = known;
  return *known;
}

Instruction& instruction_of(uint16_t number) { return instructions[number]; }
unsigned instruction_count() { return instructions.size(); }

void forget_instructions() {
  by_pc.clear();
  instructions.clear();
  memset(recent, 0, sizeof(recent));
}

// ---- Regions: tensors, allocations, variables, arrays in shared memory.

static std::vector<Region*> regions, paddings;  // by address
static std::vector<Region*> segments;           // of libraries: constants of the compiler

static Region* find_in(const std::vector<Region*>& list, uintptr_t address) {
  const auto after = std::upper_bound(list.begin(), list.end(), address,
                                      [](uintptr_t x, const Region* r) { return x < r->begin; });
  return after != list.begin() && after[-1]->has(address) ? after[-1] : nullptr;
}

// A library's own memory, such as tables of constants.
static Region* find_segment(uintptr_t address) {
  for (Region* segment : segments) {
    if (segment->has(address)) return segment;
  }
  struct Search {
    uintptr_t address;
    Region* found;
  } search = {address, nullptr};
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          Region region;
          region.begin = library->dlpi_addr + part.p_vaddr;
          region.bytes = part.p_memsz;
          region.space = Space::kConstant;
          if (part.p_type == PT_LOAD && region.has(search.address)) search.found = new Region(region);
        }
        return search.found ? 1 : 0;
      },
      &search);
  if (search.found) segments.push_back(search.found);
  return search.found;
}

Region* find_region(uintptr_t address) {
  if (Region* found = find_in(regions, address)) return found;
  if (Region* found = find_in(paddings, address)) return found;
  return find_segment(address);
}

Region* add_region(const Region& region) {
  auto& list = region.is_padding ? paddings : regions;
  const auto at = std::lower_bound(list.begin(), list.end(), region.begin,
                                   [](const Region* r, uintptr_t x) { return r->begin < x; });
  return *list.insert(at, new Region(region));
}

void remove_region(uintptr_t begin) {
  for (size_t i = 0; i < regions.size(); ++i) {
    Region* region = regions[i];
    if (region->begin != begin) continue;
    regions.erase(regions.begin() + i);
    for (Instruction& instruction : instructions) instruction.region = nullptr;
    free(region->cells);
    delete region;
    return;
  }
}

void prepare_cells(Region& region) {
  free(region.cells);
  region.watched = region.bytes;
  const size_t count = (region.watched >> region.shift) + 1;
  region.cells = static_cast<Cell*>(calloc(count, sizeof(Cell)));
  if (!region.cells) abort();
}

void visit_regions(void (*visit)(Region&)) {
  for (Region* region : std::vector<Region*>(regions)) visit(*region);
}

Region* shared_region_at(uint32_t address) {
  for (Region* region : regions) {
    if (region->space != Space::kShared) continue;
    if (address - region->shared_address <= region->bytes) return region;
  }
  return nullptr;
}

// An access of fewer bytes than a cell has, or across two: smaller cells, each with what the large
// one knew.
static void split_cells(Region& region, unsigned shift) {
  const Cell* old = region.cells;
  const unsigned was = region.shift;
  const size_t count = (region.watched >> shift) + 1, old_count = (region.watched >> was) + 1;
  region.cells = static_cast<Cell*>(calloc(count, sizeof(Cell)));
  if (!region.cells) abort();
  for (size_t i = 0; i < count; ++i)
    region.cells[i] = old[std::min(i >> (was - shift), old_count - 1)];
  region.shift = shift;
  free(const_cast<Cell*>(old));
}

// ---- Who is ordered before whom.

struct Release {  // a store that others may wait for
  uintptr_t address;
  uint32_t device_fence, block_fence;  // what the block had done before is published
  uint64_t sequence;
};
static std::vector<Release> releases;
struct Block {
  uint32_t time;
  uint64_t linear;
  size_t releases;  // those of blocks before it
};
static std::vector<Block> blocks;
static std::unordered_map<uintptr_t, uint64_t> acquired;              // by any thread of this block
static std::unordered_map<uint64_t, uint64_t> acquired_by;            // by a thread
static uint64_t sequence;

void note_block(uint32_t time) {
  blocks.push_back({time, machine.block_number, releases.size()});
  if (acquired.empty()) return;
  acquired.clear();
  acquired_by.clear();
}

static const Block& block_of(uint32_t time) {
  const auto after = std::upper_bound(blocks.begin(), blocks.end(), time,
                                      [](uint32_t t, const Block& b) { return t < b.time; });
  return after[-1];
}

uint64_t block_at(uint32_t time) { return block_of(time).linear; }

void forget_releases() {
  releases.clear();
  blocks.clear();
}

void on_fence(bool is_device) {
  Thread& thread = me();
  machine.block_fence = thread.block_fence = ++machine.now;
  if (is_device) machine.device_fence = thread.device_fence = machine.now;
}

static uint64_t key_of(uintptr_t address, const Thread& thread) {
  return address << 10 | thread.number;
}

void on_release(uintptr_t address) {
  const Thread& thread = me();
  const Release release = {address, std::max(thread.device_fence, machine.met_device_fence),
                           std::max(thread.block_fence, machine.met_block_fence), ++sequence};
  if (release.block_fence >= machine.block_begin) releases.push_back(release);
}

void on_acquire(uintptr_t address) {
  if (releases.empty()) return;
  acquired[address] = ++sequence;
  acquired_by[key_of(address, me())] = sequence;
}

// Whether an access by another thread was published, and this thread has waited for that.
static bool is_released(const Touch& touch) {
  if (releases.empty()) return false;
  const Block& block = block_of(touch.time);
  const bool is_here = touch.time >= machine.block_begin;
  const size_t end = &block + 1 == blocks.data() + blocks.size() ? releases.size()
                                                                 : (&block + 1)->releases;
  for (size_t i = block.releases; i < end; ++i) {
    const Release& release = releases[i];
    if (touch.time >= (is_here ? release.block_fence : release.device_fence)) continue;
    uint64_t when = 0;
    if (is_here) {
      const auto found = acquired_by.find(key_of(release.address, me()));
      if (found != acquired_by.end()) when = found->second;
    } else {
      const auto found = acquired.find(release.address);
      if (found != acquired.end()) when = found->second;
    }
    if (when > release.sequence) return true;
  }
  return false;
}

// Whether an access surely came before what the current thread does now.
static inline bool is_before(const Touch& touch) {
  if (touch.time < machine.barrier) {
    if (touch.time < machine.launch_begin || touch.time >= machine.block_begin) return true;
    return is_released(touch);
  }
  const Thread& thread = me();
  const unsigned other = touch.thread & kThreadBits;
  if (other == thread.number) return true;
  if (other / kLanes == thread.warp_number()) {
    const Warp& warp = warp_of(thread);
    if (touch.time < warp.synced) return true;
    if (warp.has_pairs && touch.time < warp.pairs[thread.lane][other % kLanes]) return true;
  }
  return is_released(touch);
}

// Atomic and volatile accesses may meet. In shared memory of one warp volatile does not help: that
// was the way before Volta, whose threads do not run in step.
static inline bool may_meet(const Touch& touch, const Access& access, const Region& region) {
  const bool is_strong = touch.thread & (kIsAtomic | kIsVolatile);
  if (!is_strong || !(access.is_volatile || access.kind == Kind::kAtomic)) return false;
  const bool is_atomic = (touch.thread & kIsAtomic) && access.kind == Kind::kAtomic;
  if (is_atomic || region.space != Space::kShared) return true;
  return (touch.thread & kThreadBits) / kLanes != me().warp_number();
}

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
  if (region) {
    add_fact(fault, "region", region->name);
    add_fact(fault, "label", region->label);
    add_fact(fault, "offset", access.address - region->begin);
    add_fact(fault, "size", region->bytes);
    add_fact(fault, "element", region->element);
    add_fact(fault, "space", region->space == Space::kShared ? "shared" : "global");
  }
  return fault;
}

// The region from which the address is least far.
static const Region* nearest_region(uintptr_t address) {
  const Region* best = nullptr;
  uintptr_t least = UINTPTR_MAX;
  for (const Region* region : regions) {
    const uintptr_t far = address < region->begin ? region->begin - address : address - region->end();
    if (region->has(address)) return region;
    if (far < least) {
      least = far;
      best = region;
    }
  }
  return least < (1 << 26) ? best : nullptr;
}

[[noreturn]] static void report_outside(const Access& access, const void* pc) {
  if (access.address < 65536) report_and_kill(fault_of("null pointer", access, pc, nullptr));
  for (unsigned i = 0; i < machine.threads; ++i) {
    if (access.address - threads[i].fiber.stack >= kStackBytes) continue;
    Fault fault = fault_of("out of bounds", access, pc, nullptr);
    add_fact(fault, "local_of", i);
    report_and_kill(fault);
  }
  report_and_kill(fault_of("out of bounds", access, pc, nearest_region(access.address)));
}

static Fault fault_between(const char* kind, const Access& access, const void* pc,
                           const Region& region, const Touch& other, bool is_read) {
  Fault fault = fault_of(kind, access, pc, &region);
  add_other(fault, other);
  const bool is_atomic = other.thread & kIsAtomic;
  add_fact(fault, "other_access", is_read ? "read" : is_atomic ? "atomic" : "write");
  if (access.kind == Kind::kLoad && is_atomic) fault.load_beside_atomic = pc;
  if (access.kind == Kind::kAtomic && is_read) fault.load_beside_atomic = fault.other_pc;
  return fault;
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
  Fault fault = fault_between(is_same ? "same value" : "race", suspicion.access, suspicion.pc,
                              *suspicion.region, suspicion.other, suspicion.is_read);
  fault.is_note = is_same;
  report(fault);
}

static void suspect(const Access& access, const void* pc, const Region& region, const Touch& other,
                    bool is_read) {
  if (access.bytes > sizeof(suspicion.before) || access.kind != Kind::kStore)
    return report(fault_between("race", access, pc, region, other, is_read));
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
        report(fault_between("missing wait", access, pc, region, write, false));
        has_reported = true;
      } else if (!is_before(write) && !may_meet(write, access, region)) {
        report(fault_between("race", access, pc, region, write, false));
        has_reported = true;
      }
    }
    note_read(cell, touch);
  }
  // A copy of a whole struct may take its padding along.
  if (missing > 0 && (!access.is_struct || missing == last - first + 1))
    report(fault_of("uninitialized", access, pc, &region));
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
        suspect(access, pc, region, other ? *other : *reader, !other);
        has_reported = true;
      }
    }
    cell.write = touch;
    cell.read = cell.other_read = {};
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
  if (access.kind != Kind::kStore && access.kind != Kind::kAtomic && access.kind != Kind::kArrival) {
    watch_load(region, access, touch, first, last, pc);
    if (access.is_volatile) on_acquire(access.address);
    return;
  }
  region.was_written = true;
  if (access.kind == Kind::kAtomic) {
    touch.thread |= kIsAtomic;
    for (size_t i = first; i <= last; ++i) {
      if (is_written(region, region.cells[i].write)) continue;
      report(fault_of("uninitialized", access, pc, &region));
      break;
    }
    on_acquire(access.address);
  }
  if (access.kind == Kind::kArrival) touch.thread |= kInFlight;
  watch_store(region, access, touch, first, last, pc);
  if (access.kind == Kind::kAtomic || access.is_volatile) on_release(access.address);
}

// ---- The check before each access.

void on_access(const Access& access, const void* pc) {
  settle();
  count_step();
  Thread& thread = me();
  // old = *address; while (...) old = atomicCAS(address, old, ...): such a load may see anything.
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
  if (region->end() - access.address < access.bytes) report_outside(access, pc);
  if (machine.options.faults && region->cells) watch(*region, access, instruction);
  if (access.kind != Kind::kArrival) log_access(access, region->space, pc);
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
