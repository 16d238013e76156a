// What g++ calls from the code of a kernel. -fsanitize=thread calls a function before each access
// to memory, and when a function begins and ends; -fsanitize-coverage=trace-pc in each basic block;
// -fsanitize=bounds,object-size,alignment where an index or an address is wrong. Here these are
// not the functions of the sanitizers' own libraries.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "count.h"
#include "faults.h"
#include "flow.h"
#include "machine.h"
#include "watch.h"

using namespace emulator;

#define CALLER __builtin_return_address(0)
#define STACK reinterpret_cast<uintptr_t>(__builtin_frame_address(0))

EMULATOR_API void __tsan_init() {}

static inline void check(void* address, unsigned bytes, Kind kind, bool is_volatile, unsigned unit,
                         const void* pc) {
  const Access access = {uintptr_t(address), bytes, kind, is_volatile, unit};
  if (machine.current)
    on_access(access, pc);
  else if (machine.is_watching && !machine.has_host_access)
    on_host_access(access, pc);
}

#define CHECKS(bytes)                                             \
  EMULATOR_API void __tsan_read##bytes(void* address) {           \
    check(address, bytes, Kind::kLoad, false, 0, CALLER);         \
  }                                                               \
  EMULATOR_API void __tsan_write##bytes(void* address) {          \
    check(address, bytes, Kind::kStore, false, 0, CALLER);        \
  }                                                               \
  EMULATOR_API void __tsan_volatile_read##bytes(void* address) {  \
    check(address, bytes, Kind::kLoad, true, 0, CALLER);          \
  }                                                               \
  EMULATOR_API void __tsan_volatile_write##bytes(void* address) { \
    check(address, bytes, Kind::kStore, true, 0, CALLER);         \
  }
CHECKS(1)
CHECKS(2)
CHECKS(4)
CHECKS(8)
CHECKS(16)

// Structs whose bytes are no power of two, or more than their alignment (but for 16 bytes, of which
// the compiler wants an alignment of 8).
static unsigned unit_of(unsigned long bytes) {
  const bool is_power = (bytes & (bytes - 1)) == 0;
  if (!is_power || bytes > 16) return 16;
  return unsigned(bytes < 8 ? bytes : 8) / 2;
}
EMULATOR_API void __tsan_read_range(void* address, unsigned long bytes) {
  check(address, unsigned(bytes), Kind::kLoad, false, unit_of(bytes), CALLER);
}
EMULATOR_API void __tsan_write_range(void* address, unsigned long bytes) {
  check(address, unsigned(bytes), Kind::kStore, false, unit_of(bytes), CALLER);
}

// A constructor writes where its class's table of virtual functions is.
EMULATOR_API void __tsan_vptr_update(void** address, void*) {
  check(address, sizeof(void*), Kind::kStore, false, 0, CALLER);
}
EMULATOR_API void __tsan_vptr_read(void**) {}

EMULATOR_API void __tsan_func_entry(void* caller) {
  if (!machine.current) return;
  if (me().frames.empty() && !machine.has_started) begin_kernel(CALLER);
  count_step();
  enter_function(me(), caller, STACK);
}
EMULATOR_API void __tsan_func_exit() {
  if (machine.current && !me().frames.empty()) me().frames.pop_back();
}

// Small functions that touch no memory do not tell that they begin; but their stack is another.
EMULATOR_API void __sanitizer_cov_trace_pc() {
  if (!machine.current) return;
  settle();
  me().pc = CALLER;
  count_step();
  if (!me().frames.empty() && me().frames.back().stack == STACK) log_block(CALLER);
}

// ---- -fsanitize=bounds,object-size,alignment.

namespace {

struct SourcePlace {
  const char* file;
  uint32_t line, column;
};
struct TypeName {
  uint16_t kind, info;
  char name[1];
};
struct OutOfBounds {
  SourcePlace place;
  const TypeName *array, *index;
};
struct Mismatch {
  SourcePlace place;
  const TypeName* type;
  uint8_t log_alignment, kind;  // 0: load, 1: store
};

void add_place(Fault& fault, const SourcePlace& place, const TypeName* type) {
  add_fact(fault, "file", place.file);
  add_fact(fault, "line", place.line);
  add_fact(fault, "type", type->name);
}

}  // namespace

EMULATOR_API void __ubsan_handle_out_of_bounds(OutOfBounds* data, uintptr_t index) {
  if (!machine.current) return;
  Fault fault = fault_here("out of bounds", CALLER);
  add_place(fault, data->place, data->array);
  add_fact(fault, "index", static_cast<int64_t>(index));
  report_and_kill(fault);
}

EMULATOR_API void __ubsan_handle_type_mismatch_v1(Mismatch* data, uintptr_t address) {
  if (!machine.current) return;
  const uintptr_t alignment = uintptr_t(1) << data->log_alignment;
  const char* kind = address < 65536           ? "null pointer"
                     : address % alignment > 0 ? "misaligned"
                                               : "out of bounds";
  Fault fault = fault_here(kind, CALLER);
  fault.access = data->kind == 1 ? "write" : "read";
  fault.address = address;
  add_place(fault, data->place, data->type);
  add_fact(fault, "alignment", alignment);
  report_and_kill(fault);
}

// ---- Functions of the C library that kernels call.

// memcpy and its relatives. The translation calls these: g++ would copy by itself, after the
// checks.
EMULATOR_API void emulator_touch(void* address, size_t bytes, size_t unit, int is_write,
                                 const void* pc) {
  if (bytes == 0) return;
  const Kind kind = is_write ? Kind::kStore : Kind::kLoad;
  check(address, unsigned(bytes), kind, false, unsigned(unit < 16 ? unit : 16), pc);
}
EMULATOR_API void* emulator_copy(void* to, size_t unit, const void* from, size_t from_unit,
                                 size_t bytes) {
  emulator_touch(const_cast<void*>(from), bytes, from_unit, false, CALLER);
  emulator_touch(to, bytes, unit, true, CALLER);
  return memmove(to, from, bytes);
}
EMULATOR_API void* emulator_fill(void* to, size_t unit, int value, size_t bytes) {
  emulator_touch(to, bytes, unit, true, CALLER);
  return memset(to, value, bytes);
}

EMULATOR_API void __wrap_abort() {
  if (!machine.current) {
    end_launcher(-1);
    abort();
  }
  report_and_kill(fault_here("trap", CALLER));
}

EMULATOR_API void __wrap___assert_fail(const char* text, const char* file, unsigned line,
                                       const char* function) {
  if (!machine.current) {
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, text);
    __wrap_abort();
  }
  Fault fault = fault_here("assert", CALLER);
  add_fact(fault, "file", file);
  add_fact(fault, "line", line);
  add_fact(fault, "text", text);
  report_and_kill(fault);
}
