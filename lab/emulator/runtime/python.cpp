// The functions that Python calls: a run begins, tensors are named, the results are a text of JSON.
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>
#include <vector>

#include "allocations.h"
#include "count.h"
#include "faults.h"
#include "machine.h"
#include "memory.h"
#include "results.h"

using namespace emulator;

namespace emulator {

extern std::vector<Fault> faults;
static std::string launches;
static std::vector<Region*> tensors;

using Call = UntypedCall;
struct Export {
  std::string name, signature;
  const void* address;
  bool is_kernel;
  Call* call;
};
static std::vector<Export> exports;
static std::map<const void*, Call*> kernel_calls;

static std::string text_of(const Extent& x) {
  return "[" + number(x.x) + "," + number(x.y) + "," + number(x.z) + "]";
}
static std::string text_of(const Index& x) { return text_of(Extent{x.x, x.y, x.z}); }
static std::string text_of(const void* pc) { return number(reinterpret_cast<intptr_t>(pc)); }

// Lists [address, space, kind, requests, sectors, ideal, wavefronts, conflicts].
void keep_counts() {
  std::string list;
  for (Instruction* counted : counted_instructions()) {
    Instruction& instruction = *counted;
    for (unsigned space = 0; space < 2; ++space) {
      for (unsigned kind = 0; kind < 5; ++kind) {
        const Counts& counts = instruction.counts[space][kind];
        if (counts.requests == 0) continue;
        if (!list.empty()) list += ",";
        list += "[" + text_of(instruction.pc) + "," + number(space) + "," + number(kind) + "," +
                number(counts.requests) + "," + number(counts.sectors) + "," +
                number(counts.ideal) + "," + number(counts.wavefronts) + "," +
                number(counts.conflicts) + "]";
      }
    }
    memset(instruction.counts, 0, sizeof(instruction.counts));
    instruction.is_counted = false;
  }
  counted_instructions().clear();
  const LaunchConfig& config = machine.launch;
  if (!launches.empty()) launches += ",";
  launches += "{\"kernel\":" + text_of(machine.kernel) +
              ",\"text\":" + quoted(config.text ? config.text : "") +
              ",\"file\":" + quoted(config.file ? config.file : "") +
              ",\"line\":" + number(config.line) + ",\"grid\":" + text_of(config.grid) +
              ",\"block\":" + text_of(config.block) + ",\"shared\":" + number(config.shared) +
              ",\"most_requests\":" + number(most_requests()) + ",\"counts\":[" + list + "]}";
  most_requests() = 0;
}

static std::string text_of(const Fault& fault) {
  std::string text = "{\"kind\":" + quoted(fault.kind) + ",\"access\":" + quoted(fault.access) +
                     ",\"pc\":" + text_of(fault.pc) + ",\"count\":" + number(fault.count) +
                     ",\"kernel\":" + text_of(fault.kernel) +
                     ",\"launch\":" + number(fault.launch) +
                     ",\"is_note\":" + (fault.is_note ? "true" : "false") +
                     ",\"is_same_warp\":" + (fault.is_same_warp ? "true" : "false");
  if (fault.has_other && instruction_at(fault.pc).is_of_update &&
      instruction_at(fault.other_pc).is_of_update)
    text += ",\"is_update\":true";
  if (fault.has_thread)
    text += ",\"block\":" + text_of(fault.block) + ",\"thread\":" + text_of(fault.thread);
  if (fault.other_pc) text += ",\"other_pc\":" + text_of(fault.other_pc);
  if (fault.has_other)
    text += ",\"other_block\":" + text_of(fault.other_block) +
            ",\"other_thread\":" + text_of(fault.other_thread);
  text += ",\"address\":" + number(fault.address) + ",\"bytes\":" + number(fault.bytes);
  return text + fault.facts + "}";
}

}  // namespace emulator

EMULATOR_API void emulator_begin(int order, uint64_t seed, int counts, int faults_too,
                                 uint64_t steps) {
  machine.options = {order, counts, faults_too, seed, steps};
  machine.error = machine.sticky_error = 0;
  machine.is_watching = true;
  faults.clear();
  launches.clear();
  tensors.clear();
  machine.launch_number = 0;
  machine.was_ended = machine.has_host_access = false;
  // Host code may have written variables and allocations since the last run.
  ++machine.now;
}

// Memory of a tensor. Its elements count as not yet written if is_new.
EMULATOR_API void emulator_tensor(void* memory, size_t bytes, int is_new, const char* name) {
  Region region;
  region.begin = reinterpret_cast<uintptr_t>(memory);
  region.bytes = bytes;
  region.is_initialized = !is_new;
  region.name = strdup(name);
  region.label = int(tensors.size());
  Region* added = add_region(region);
  if (machine.options.faults) prepare_cells(*added);
  tensors.push_back(added);
}

// Whether threads wrote to a tensor, and which of its elements of so many bytes: 1 or 0 for each.
EMULATOR_API int emulator_written_elements(int tensor, size_t bytes, uint8_t* is_written) {
  const Region& region = *tensors[tensor];
  if (!region.cells) return 0;
  for (size_t i = 0; i < region.bytes / bytes; ++i) {
    bool all = true;
    const size_t first = i * bytes >> region.shift, last = (i * bytes + bytes - 1) >> region.shift;
    for (size_t cell = first; cell <= last; ++cell) all &= region.cells[cell].write.time > 0;
    is_written[i] = all;
  }
  return region.was_written;
}

EMULATOR_API const char* emulator_results() {
  static std::string text;
  text = std::string("{\"was_ended\":") + (machine.was_ended ? "true" : "false") +
         ",\"launches\":[" + launches + "],\"faults\":[";
  bool is_first = true;
  for (const Fault& fault : faults) {
    const void* load = fault.racing_load;
    if (load && instruction_at(load).is_before_atomic) continue;
    text += (is_first ? "" : ",") + text_of(fault);
    is_first = false;
  }
  text += "]}";
  return text.c_str();
}

EMULATOR_API void emulator_end() {
  for (Region* region : tensors) {
    char* name = const_cast<char*>(region->name);
    remove_region(region->begin);
    free(name);
  }
  tensors.clear();
  forget_freed();
  machine.is_watching = false;
}

// ---- Functions of a library.

EMULATOR_API void emulator_export(const char* name, const void* address, const char* signature,
                                  int is_kernel, Call* call) {
  exports.push_back({name, signature, address, is_kernel != 0, call});
  if (is_kernel) kernel_calls[address] = call;
}

EMULATOR_API UntypedCall* emulator_kernel_call(const void* kernel) {
  const auto found = kernel_calls.find(kernel);
  return found == kernel_calls.end() ? nullptr : found->second;
}

EMULATOR_API const char* emulator_exports() {  // and forgets them
  static std::string text;
  text = "[";
  for (const Export& each : exports) {
    if (text.size() > 1) text += ",";
    text += "[" + quoted(each.name) + "," + quoted(each.signature) + "," + text_of(each.address) +
            "," + (each.is_kernel ? "true" : "false") + "," +
            text_of(reinterpret_cast<const void*>(each.call)) + "]";
  }
  exports.clear();
  text += "]";
  return text.c_str();
}

// Where a launcher goes on that calls exit() or abort(): these must not end Python, which has the
// report. As in a program of its own, the destructors of its local variables do not run.
static struct {
  jmp_buf place;
  bool is_open = false;
  pthread_t thread;
  int status;
} way_out;

void emulator::end_launcher(int status) {
  if (!way_out.is_open || !pthread_equal(way_out.thread, pthread_self())) return;
  fflush(nullptr);
  way_out.status = status;
  longjmp(way_out.place, 1);
}

EMULATOR_API void __wrap_exit(int status) {
  end_launcher(status & 255);
  exit(status);
}

// Returns what a launcher has thrown, or null. has_ended: by exit(), with this status, or by
// abort(), with -1.
EMULATOR_API const char* emulator_call(Call* call, const void* function, void** arguments,
                                       void* result, int* has_ended, int* status) {
  way_out.is_open = true;
  way_out.thread = pthread_self();
  if (setjmp(way_out.place)) {
    way_out.is_open = false;
    *has_ended = 1;
    *status = way_out.status;
    return nullptr;
  }
  const char* error = call(function, arguments, result);
  way_out.is_open = false;
  return error;
}

// Returns CUDA's error.
EMULATOR_API int emulator_call_kernel(Call* call, const void* function, void** arguments,
                                      const unsigned* grid, const unsigned* block, size_t shared,
                                      const char* name) {
  struct KernelCall {
    Call* call;
    const void* function;
    void** arguments;
  } each = {call, function, arguments};
  const LaunchConfig config = {{grid[0], grid[1], grid[2]},
                               {block[0], block[1], block[2]},
                               shared,
                               1,
                               name,
                               nullptr,
                               0,
                               function};
  const auto body = [](void* data) {
    const auto& each = *static_cast<KernelCall*>(data);
    each.call(each.function, each.arguments, nullptr);
  };
  emulator_largest_shared(function, 227 * 1024);
  emulator_launch(&config, body, &each);
  return emulator_last_error(1);
}
