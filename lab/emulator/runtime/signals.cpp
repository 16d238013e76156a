#include "signals.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "faults.h"
#include "machine.h"

namespace emulator {

static char signal_stack[64 * 1024];
static struct {
  int number;
  const void* pc;
  uintptr_t address;
} last;
static uint64_t steps_at_tick;  // how far the threads had come

// Runs on the stack of the thread that crashed, from its beginning: what was there is lost anyway.
static void after_signal() {
  const bool is_stack = last.address - (me().fiber.stack - 8192) < 8192;
  me().pc = last.pc;
  Fault fault = fault_here(last.number == SIGVTALRM ? "hang"
                           : is_stack               ? "stack overflow"
                           : last.number == SIGFPE  ? "division by zero"
                                                    : "crash",
                           last.pc);
  fault.address = last.address;
  add_fact(fault, "signal", last.number);
  machine.is_hanging = last.number == SIGVTALRM;
  report_and_kill(fault);
}

// Lets the thread go on in after_signal().
static void divert(ucontext_t& context) {
  const uintptr_t top = me().fiber.top & ~uintptr_t(15);
#if defined(__x86_64__)
  auto& registers = context.uc_mcontext.gregs;
  last.pc = reinterpret_cast<void*>(registers[REG_RIP] + 1);
  registers[REG_RSP] = top - 8;
  registers[REG_RIP] = reinterpret_cast<greg_t>(&after_signal);
#elif defined(__aarch64__)
  last.pc = reinterpret_cast<void*>(context.uc_mcontext.pc + 1);
  context.uc_mcontext.sp = top;
  context.uc_mcontext.pc = reinterpret_cast<uintptr_t>(&after_signal);
#else
  signal(last.number, SIG_DFL);
#endif
}

static void on_signal(int number, siginfo_t* info, void* data) {
  if (number == SIGVTALRM) {
    const uint64_t steps = machine.turns * (kMostSteps + 1) + machine.steps_left;
    const bool is_stuck = machine.current && !machine.is_busy && steps == steps_at_tick;
    steps_at_tick = steps;
    if (!is_stuck) return;
  } else if (!machine.current) {  // not in a kernel: as without us
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  last.number = number;
  last.address = number == SIGVTALRM ? 0 : reinterpret_cast<uintptr_t>(info->si_addr);
  divert(*static_cast<ucontext_t*>(data));
}

SignalGuard::SignalGuard() {
  stack_t stack = {};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof(signal_stack);
  sigaltstack(&stack, &stack_before_);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, &before_[i]);
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGVTALRM;
#ifndef sigev_notify_thread_id
  event._sigev_un._tid = int(syscall(SYS_gettid));
#else
  event.sigev_notify_thread_id = int(syscall(SYS_gettid));
#endif
  has_clock_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &clock_) == 0;
  const itimerspec half_a_second = {{0, 500000000}, {0, 500000000}};
  if (has_clock_) timer_settime(clock_, 0, &half_a_second, nullptr);
}

SignalGuard::~SignalGuard() {
  if (has_clock_) timer_delete(clock_);
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &before_[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
}

}  // namespace emulator
