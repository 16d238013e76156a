// A fiber is a stack and a place in the code. Switching to another one keeps the registers that a
// function must preserve, and takes the other one's: a few nanoseconds, without a system call.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emulator {

constexpr size_t kStackBytes = 256 * 1024;

struct Fiber {
  void* place = nullptr;  // its stack pointer while it does not run
  uintptr_t stack = 0;    // the lowest address, above a page that must not be touched
  uintptr_t top = 0;
};

void give_stack(Fiber& fiber, unsigned number);
void prepare(Fiber& fiber, void (*entry)());  // the next switch to it calls entry, on a fresh stack
void switch_to(Fiber& from, Fiber& to);

}  // namespace emulator
