// The places in the code that touch memory, and the memory that they may touch.
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "memory.h"

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

// ---- Regions: tensors, allocations, variables, arrays in shared memory.

static std::vector<Region*> regions, paddings;  // by address
static std::vector<Region*> segments;  // of libraries: constants of the compiler, host's variables

static Region* find_in(const std::vector<Region*>& list, uintptr_t address) {
  const auto after = std::upper_bound(list.begin(), list.end(), address,
                                      [](uintptr_t x, const Region* r) { return x < r->begin; });
  return after != list.begin() && after[-1]->has(address) ? after[-1] : nullptr;
}

// Memory of the kernel's library, such as tables of constants.
static Region* find_segment(uintptr_t address) {
  for (Region* segment : segments) {
    if (segment->has(address)) return segment;
  }
  struct Search {
    uintptr_t address;
    Region* found;
    bool has_kernel;  // the library
  } search = {address, nullptr, false};
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        uintptr_t end_of_tables = 0;  // which the linker fills in, and which then are constants
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          if (part.p_type == PT_GNU_RELRO)
            end_of_tables = library->dlpi_addr + part.p_vaddr + part.p_memsz;
        }
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          if (part.p_type != PT_LOAD) continue;
          Region region;
          region.begin = library->dlpi_addr + part.p_vaddr;
          region.bytes = part.p_memsz;
          region.space = Space::kConstant;
          region.is_of_host = (part.p_flags & PF_W) && search.address >= end_of_tables;
          if (region.is_of_host && region.has(end_of_tables)) {
            region.bytes = region.end() - end_of_tables;
            region.begin = end_of_tables;
          } else if (part.p_flags & PF_W && region.has(end_of_tables)) {
            region.bytes = end_of_tables - region.begin;
          }
          if (region.has(search.address)) search.found = new Region(region);
          search.has_kernel |= region.has(reinterpret_cast<uintptr_t>(machine.kernel));
        }
        if (search.found && search.has_kernel) return 1;
        search.found = nullptr;
        search.has_kernel = false;
        return 0;
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

const Region* find_memory(uintptr_t address) { return find_in(regions, address); }

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

static Cell* new_cells(size_t count) {
  if (void* cells = calloc(count, sizeof(Cell))) return static_cast<Cell*>(cells);
  fprintf(stderr, "emulator: no memory to watch %zu pieces of an array; make the array smaller\n",
          count);
  exit(2);
}

void prepare_cells(Region& region) {
  free(region.cells);
  region.watched = region.bytes;
  const size_t count = (region.watched >> region.shift) + 1;
  region.cells = new_cells(count);
}

// The region from which the address is least far.
const Region* nearest_region(uintptr_t address) {
  const Region* best = nullptr;
  uintptr_t least = UINTPTR_MAX;
  for (const Region* region : regions) {
    const uintptr_t far =
        address < region->begin ? region->begin - address : address - region->end();
    if (region->has(address)) return region;
    if (far < least) {
      least = far;
      best = region;
    }
  }
  return least < (1 << 26) ? best : nullptr;
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
void split_cells(Region& region, unsigned shift) {
  const Cell* old = region.cells;
  const unsigned was = region.shift;
  const size_t count = (region.watched >> shift) + 1, old_count = (region.watched >> was) + 1;
  static const Cell kNew = {};
  machine.is_busy = true;
  region.cells = new_cells(count);
  // calloc takes memory only for what is written, so cells that nobody has touched stay as they
  // are.
  for (size_t i = 0; i < old_count; ++i) {
    if (memcmp(&old[i], &kNew, sizeof(Cell)) == 0) continue;
    const size_t end = std::min(count, (i + 1) << (was - shift));
    for (size_t j = i << (was - shift); j < end; ++j) region.cells[j] = old[i];
  }
  region.shift = shift;
  free(const_cast<Cell*>(old));
  machine.is_busy = false;
}

}  // namespace emulator
