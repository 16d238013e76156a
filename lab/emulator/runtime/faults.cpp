#include "faults.h"

#include <stdio.h>

#include <map>

#include "order.h"

namespace emulator {

std::vector<Fault> faults;  // of this run; python.cpp hands them out
constexpr size_t kMostFaults = 200;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      char code[8];
      snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number(int64_t x) { return std::to_string(x); }

Fault fault_here(const char* kind, const void* pc) {
  Fault fault;
  fault.kind = kind;
  fault.pc = pc;
  fault.has_thread = machine.current != nullptr;
  fault.block = machine.block;
  fault.kernel = machine.kernel;
  fault.launch = machine.launch_number;
  if (fault.has_thread) fault.thread = me().at;
  return fault;
}

void add_fact(Fault& fault, const char* name, const std::string& text) {
  fault.facts += "," + quoted(name) + ":" + quoted(text);
}

void add_fact(Fault& fault, const char* name, int64_t x) {
  fault.facts += "," + quoted(name) + ":" + number(x);
}

void add_other(Fault& fault, const Touch& touch) {
  fault.has_other = true;
  fault.other_pc = instruction_of(touch.instruction).pc;
  fault.other_block = block_index(block_at(touch.time));
  fault.other_thread = threads[touch.thread & kThreadBits].at;
  fault.is_same_warp = is_same_warp(touch);
}

// The threads of the block by where they stand, as lists of [address, state, count, first thread].
void add_positions(Fault& fault) {
  struct Group {
    int count = 0;
    unsigned first = 0;
  };
  std::map<std::pair<uintptr_t, int>, Group> groups;
  for (unsigned i = 0; i < machine.threads; ++i) {
    const Thread& thread = threads[i];
    const bool is_ended = thread.state == State::kEnded;
    const auto pc = is_ended ? 0 : reinterpret_cast<uintptr_t>(thread.pc);
    Group& group = groups[{pc, int(thread.state)}];
    if (group.count++ == 0) group.first = i;
  }
  std::string list;
  for (const auto& [key, group] : groups) {
    if (!list.empty()) list += ",";
    list += "[" + number(key.first) + "," + number(key.second) + "," + number(group.count) + "," +
            number(group.first) + "]";
  }
  fault.facts += ",\"positions\":[" + list + "]";
}

// A fault that has been found in the same place before is only counted; of a race, two warps say
// more than two lanes. Once a launch is over, what follows from the first fault is no news.
static Fault* find_fault(const std::string& kind, const void* pc, const void* other_pc) {
  for (Fault& known : faults) {
    const bool is_same = known.pc == pc && known.other_pc == other_pc;
    const bool is_turned = known.pc == other_pc && known.other_pc == pc;
    if (known.kind == kind && (is_same || is_turned)) return &known;
  }
  return nullptr;
}

bool count_again(const char* kind, const void* pc, const void* other_pc, bool is_same_warp) {
  Fault* known = find_fault(kind, pc, other_pc);
  if (!known || (known->is_same_warp && !is_same_warp)) return false;
  ++known->count;
  return true;
}

void report(const Fault& fault) {
  if (Fault* known = find_fault(fault.kind, fault.pc, fault.other_pc)) {
    const uint64_t count = known->count + 1;
    if (known->is_same_warp && !fault.is_same_warp) *known = fault;
    known->count = count;
    return;
  }
  if (machine.is_over && !faults.empty()) return;
  if (faults.size() < kMostFaults) faults.push_back(fault);
}

void report_and_kill(const Fault& fault) {
  report(fault);
  kill_thread();
}

}  // namespace emulator
