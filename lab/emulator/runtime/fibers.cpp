#include "fibers.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>

#include <map>
#endif

namespace emulator {

// Stacks that begin at the same place of a page would fight for the same lines of the cache, so
// each begins somewhat lower than the one before.
void give_stack(Fiber& fiber, unsigned number) {
  if (fiber.stack) return;
  const size_t page = sysconf(_SC_PAGESIZE);
  char* memory = static_cast<char*>(mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) abort();
  mprotect(memory, page, PROT_NONE);  // a stack that is too long ends here
  fiber.stack = reinterpret_cast<uintptr_t>(memory) + page;
  fiber.top = fiber.stack + kStackBytes - number % 61 * 320;
}

#if defined(__x86_64__)
// The stack of a fiber that waits: six registers, then the address at which it goes on.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.type emulator_switch, @function
.hidden emulator_switch
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size emulator_switch, . - emulator_switch
)");

void prepare(Fiber& fiber, void (*entry)()) {
  auto** stack = reinterpret_cast<void**>(fiber.top);
  *--stack = nullptr;  // entry never returns
  *--stack = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--stack = nullptr;
  fiber.place = stack;
}

#elif defined(__aarch64__)
// x19 to x30 and d8 to d15; x30 is the address at which the fiber goes on.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.type emulator_switch, %function
.hidden emulator_switch
emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulator_switch, . - emulator_switch
)");

void prepare(Fiber& fiber, void (*entry)()) {
  auto** stack = reinterpret_cast<void**>(fiber.top & ~uintptr_t(15)) - 20;
  for (int i = 0; i < 20; ++i) stack[i] = nullptr;
  stack[11] = reinterpret_cast<void*>(entry);
  fiber.place = stack;
}

#else
// Elsewhere the C library switches, which takes a system call each time.
static std::map<Fiber*, ucontext_t> contexts;

void prepare(Fiber& fiber, void (*entry)()) {
  ucontext_t& context = contexts[&fiber];
  getcontext(&context);
  context.uc_stack.ss_sp = reinterpret_cast<void*>(fiber.stack);
  context.uc_stack.ss_size = fiber.top - fiber.stack;
  makecontext(&context, entry, 0);
}

void switch_to(Fiber& from, Fiber& to) { swapcontext(&contexts[&from], &contexts[&to]); }
#endif

#if defined(__x86_64__) || defined(__aarch64__)
void switch_to(Fiber& from, Fiber& to) { emulator_switch(&from.place, to.place); }
#endif

}  // namespace emulator
