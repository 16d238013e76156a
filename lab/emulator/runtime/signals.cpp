#include "signals.h"

#include <stdlib.h>
#include <ucontext.h>

#include "faults.h"
#include "machine.h"

namespace emulator {

static char signal_stack[64 * 1024];
static struct {
  int number;
  const void* pc;
  uintptr_t address;
} last;

// Runs on the stack of the thread that crashed, from its beginning: what was there is lost anyway.
static void after_crash() {
  const bool is_stack = last.address - (me().fiber.stack - 8192) < 8192;
  const char* kind = is_stack ? "stack overflow" : last.number == SIGFPE ? "division by zero"
                                                                         : "crash";
  Fault fault = fault_here(kind, last.pc);
  fault.address = last.address;
  add_fact(fault, "signal", last.number);
  report_and_kill(fault);
}

static void on_signal(int number, siginfo_t* info, void* data) {
  if (!machine.current) {  // not in a kernel: as without us
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  auto& context = *static_cast<ucontext_t*>(data);
  last.number = number;
  last.address = reinterpret_cast<uintptr_t>(info->si_addr);
#if defined(__x86_64__)
  last.pc = reinterpret_cast<void*>(context.uc_mcontext.gregs[REG_RIP] + 1);
  context.uc_mcontext.gregs[REG_RSP] = (me().fiber.top & ~uintptr_t(15)) - 8;
  context.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&after_crash);
#elif defined(__aarch64__)
  last.pc = reinterpret_cast<void*>(context.uc_mcontext.pc + 1);
  context.uc_mcontext.sp = me().fiber.top & ~uintptr_t(15);
  context.uc_mcontext.pc = reinterpret_cast<uintptr_t>(&after_crash);
#else
  (void)context;
  signal(number, SIG_DFL);
#endif
}

SignalGuard::SignalGuard() {
  stack_t stack = {};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof(signal_stack);
  sigaltstack(&stack, &stack_before_);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 5; ++i) sigaction(kSignals[i], &action, &before_[i]);
}

SignalGuard::~SignalGuard() {
  for (int i = 0; i < 5; ++i) sigaction(kSignals[i], &before_[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
}

}  // namespace emulator
