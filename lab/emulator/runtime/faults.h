// What is wrong, as facts; report.py makes sentences of them.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "machine.h"
#include "memory.h"

namespace emulator {

struct Fault {
  std::string kind;
  std::string access;  // read, write, atomic
  const void *pc = nullptr, *other_pc = nullptr;
  Index block = {}, thread = {}, other_block = {}, other_thread = {};
  bool has_thread = false, has_other = false;
  uintptr_t address = 0;
  unsigned bytes = 0;
  std::string facts;  // more, as `"name":value` pairs of JSON, each after a comma
  bool is_note = false;
  bool is_same_warp = false;  // both parties
  uint64_t count = 1;
  const void* racing_load = nullptr;  // a plain load that races with an atomic operation
  const void* kernel = nullptr;
  int launch = 0;  // which one of the run
};

Fault fault_here(const char* kind, const void* pc);  // by the current thread
void add_fact(Fault& fault, const char* name, const std::string& text);
void add_fact(Fault& fault, const char* name, int64_t number);
void add_other(Fault& fault, const Touch& touch);
void report(const Fault& fault);
// Counts a fault that has been reported before; false if there is none. Saves making another one.
bool count_again(const char* kind, const void* pc, const void* other_pc, bool is_same_warp);
[[noreturn]] void report_and_kill(const Fault& fault);
void add_positions(Fault& fault);  // where all threads of the block stand

std::string quoted(const std::string& text);  // as JSON
std::string number(int64_t x);

}  // namespace emulator
