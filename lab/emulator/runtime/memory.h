// The memory that threads may touch and who touched it last; the places in the code that do so.
#pragma once
#include <stdint.h>

#include "machine.h"

namespace emulator {

enum class Space : uint8_t { kGlobal, kShared, kConstant };

// The last access of one kind: when, by which thread of which block (the time says that), where.
struct Touch {
  uint32_t time = 0;  // 0: none
  uint16_t thread = 0;
  uint16_t instruction = 0;
};
constexpr uint16_t kThreadBits = 1023, kIsAtomic = 1 << 10, kIsVolatile = 1 << 11,
                   kInFlight = 1 << 12,  // a copy that has not arrived
    kWasStore = 1 << 13;                 // a plain store that an atomic operation followed

// A piece of memory of 1, 2 or 4 bytes. Two readers, as a later write may follow only one of them.
struct Cell {
  Touch write, read, other_read;
};

struct Region {
  uintptr_t begin = 0, bytes = 0;
  Space space = Space::kGlobal;
  bool is_initialized = true;  // before any thread writes
  bool was_written = false;
  bool is_padding = false;        // surrounds arrays in shared memory: never right
  bool is_only_on_gpu = false;    // of cudaMalloc: the host must not touch it
  bool is_of_host = false;        // variables of the host: a kernel must not touch them
  const void* made_by = nullptr;  // where cudaMalloc or a relative was called
  unsigned shift = 2;             // log2 of the bytes of a cell
  Cell* cells = nullptr;          // null: not watched
  size_t watched = 0;  // bytes that have cells: of dynamic shared memory, as much as there can be
  uint32_t shared_address = 0;
  uint32_t poisoned = 0;  // when a block that has this array began
  unsigned element = 1;   // bytes
  int label = -1;         // Python's number for it, or -1
  const char* name = "";

  uintptr_t end() const { return begin + bytes; }
  bool has(uintptr_t address) const { return address - begin < bytes; }
};

enum class Kind : uint8_t {
  kLoad,
  kStore,
  kAtomic,
  kCopy,     // cp.async reads global memory
  kMatrix,   // ldmatrix
  kArrival,  // cp.async will write shared memory
};

// A place in the code that touches memory, and what was counted there.
struct Counts {
  uint64_t requests, sectors, ideal, wavefronts, conflicts;
};
struct Instruction {
  const void* pc = nullptr;
  uint16_t number = 0;
  Region* region = nullptr;       // where it went last
  bool is_before_atomic = false;  // a plain load of what the thread then changes by an atomic
  bool is_of_update = false;      // the load or the store of x += 1
  bool is_counted = false;        // in this launch
  Counts counts[3][5];            // [Space][Kind]
};

struct Access {
  uintptr_t address;
  unsigned bytes;
  Kind kind;
  bool is_volatile;
  unsigned unit;  // of a struct, or of bytes: the most that one instruction copies. 0: all at once
};

// regions.cpp
Instruction& instruction_at(const void* pc);
Instruction& instruction_of(uint16_t number);

Region* find_region(uintptr_t address);
const Region* find_memory(uintptr_t address);  // of the GPU: a tensor, an allocation, a variable
Region* add_region(const Region& region);
void remove_region(uintptr_t begin);
void prepare_cells(Region& region);  // for a new run: nothing has touched it
Region* shared_region_at(uint32_t shared_address);
const Region* nearest_region(uintptr_t address);   // from which the address is least far; or null
void split_cells(Region& region, unsigned shift);  // smaller cells, of 1 << shift bytes

}  // namespace emulator
