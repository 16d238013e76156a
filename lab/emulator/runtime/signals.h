// While a kernel runs, a crash of a thread is a fault in the report, not the end of the process. And
// a clock ticks, for loops so short that they never call the emulator.
#pragma once
#include <signal.h>
#include <time.h>

namespace emulator {

class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGVTALRM};
  static constexpr int kCount = sizeof(kSignals) / sizeof(kSignals[0]);
  struct sigaction before_[kCount];
  stack_t stack_before_;
  timer_t clock_;
  bool has_clock_;
};

}  // namespace emulator
