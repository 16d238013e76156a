// Memory of cudaMalloc: which of it has been freed, and where.
#pragma once
#include "faults.h"
#include "memory.h"

namespace emulator {

struct Freed {
  Region region;         // as it was
  const void* freed_by;  // where cudaFree was called
};

const Freed* find_freed(uintptr_t address);  // or null
void forget_freed();                         // a run ends
// By code of the host, which is no part of a kernel.
Fault host_fault(const char* kind, const void* pc);
void add_region_facts(Fault& fault, const Region& region, uintptr_t address);

}  // namespace emulator
