// While a kernel runs, a crash of a thread is a fault in the report, not the end of the process.
#pragma once
#include <signal.h>

namespace emulator {

class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
  struct sigaction before_[5];
  stack_t stack_before_;
};

}  // namespace emulator
