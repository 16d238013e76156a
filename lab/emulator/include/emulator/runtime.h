// What compiled kernels ask of the emulator, and what the emulator's own files know of it. Plain C
// functions, so that the library with the kernels and the library with the emulator fit together.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EMULATOR_API extern "C" __attribute__((visibility("default")))

namespace emulator {

// The threads that an operation of a warp joins wait for each other, then one of them computes all
// results at once.
enum WarpOperation : int {
  kSyncWarp,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kMatchAny,
  kMatchAll,
  kReduceAdd,
  kReduceMin,
  kReduceMinSigned,
  kReduceMax,
  kReduceMaxSigned,
  kReduceAnd,
  kReduceOr,
  kReduceXor,
  kMatrixProduct,    // mma.sync
  kMatrixLoad,       // ldmatrix
  kMatrixTranspose,  // movmatrix
};

enum AtomicOperation : int {
  kAdd,
  kExchange,
  kMin,
  kMax,
  kIncrement,
  kDecrement,
  kCompareAndSwap,
  kAnd,
  kOr,
  kXor,
};

enum NumberType : int { kI32, kU32, kI64, kU64, kF32, kF64, kF16, kBF16, kF16x2, kBF16x2, kU16 };

struct Extent {  // blockDim, gridDim; dim3 has constructors, and a compiler would then reload it
  unsigned x, y, z;
};

struct LaunchConfig {
  Extent grid, block;
  size_t shared;     // bytes of dynamic shared memory
  unsigned cluster;  // blocks of a cluster
  const char* text;  // the kernel as it stands in the launch
  const char* file;  // of the launch
  int line;
  const void* kernel;  // its address, or null
};

// A function of which only the address and those of its arguments are known. Returns an error or
// null.
using UntypedCall = const char*(const void* function, void** arguments, void* result);

struct Operand {  // of an inline PTX instruction
  const char* constraint;
  void* value;
  size_t bytes;
  const char* name;  // of [name], or null
};

}  // namespace emulator

// Runs body(arguments) once for each thread. False: refused; cudaGetLastError() has the reason.
EMULATOR_API bool emulator_launch(const emulator::LaunchConfig* config, void (*body)(void*),
                                  void* arguments);

// Within a thread.
EMULATOR_API int emulator_barrier(int id, int threads, int predicate, int how);  // 0: none, +, &, |
EMULATOR_API uint64_t emulator_warp(int operation, unsigned mask, uint64_t value, int lane,
                                    int width);
EMULATOR_API unsigned emulator_active_mask();
EMULATOR_API uint64_t emulator_atomic(void* address, int operation, int type, uint64_t value,
                                      uint64_t compare);
EMULATOR_API void emulator_fence(int scope);  // 0: block, 1: device or system
EMULATOR_API void emulator_copy_async(void* to, const void* from, size_t bytes, size_t zeros);
EMULATOR_API void emulator_copy_commit();
EMULATOR_API void emulator_copy_wait(unsigned batches);  // all but so many
EMULATOR_API void emulator_ptx(const char* text, const emulator::Operand* operands, int count);
EMULATOR_API void emulator_shared(void* memory, size_t memory_bytes, void* array, size_t bytes,
                                  size_t element, const char* name);
EMULATOR_API uint32_t emulator_shared_address(const void* pointer);
EMULATOR_API void* emulator_shared_pointer(uint32_t address);
EMULATOR_API void emulator_launch_bounds(unsigned threads);
EMULATOR_API void* emulator_copy(void* to, size_t unit, const void* from, size_t from_unit,
                                 size_t bytes);  // memcpy, memmove; unit: an alignment
EMULATOR_API void* emulator_fill(void* to, size_t unit, int value, size_t bytes);
EMULATOR_API uint64_t emulator_clock();
EMULATOR_API void emulator_trap();
EMULATOR_API void emulator_needs_gpu(const char* what);

// Variables and functions of a file, registered as its library is loaded.
EMULATOR_API void emulator_variable(void* address, size_t bytes, size_t element, int is_constant,
                                    const char* name);
EMULATOR_API void emulator_export(const char* name, const void* address, const char* signature,
                                  int is_kernel, emulator::UntypedCall* call);
EMULATOR_API emulator::UntypedCall* emulator_kernel_call(const void* kernel);  // or null

// 16-bit numbers, rounded to nearest even.
EMULATOR_API float emulator_half_to_float(uint16_t bits);
EMULATOR_API uint16_t emulator_half_from_double(double x);
EMULATOR_API uint16_t emulator_bfloat16_from_double(double x);
EMULATOR_API uint16_t emulator_half_from_float(float x,
                                               int toward);  // 0: nearest, 1: zero, 2: down, 3: up
EMULATOR_API uint16_t emulator_bfloat16_from_float(float x, int toward);

// CUDA's memory functions.
EMULATOR_API void* emulator_allocate(size_t bytes, bool is_only_on_gpu);
// These return CUDA's error, 0 if there is none; function: its name in a report.
EMULATOR_API int emulator_free(void* memory);
EMULATOR_API int emulator_memory_copy(void* to, const void* from, size_t bytes, int kind,
                                      const char* function);
EMULATOR_API int emulator_memory_set(void* to, int value, size_t bytes, const char* function);
EMULATOR_API int emulator_refuse_pitch(size_t width, size_t pitch, const char* function);
EMULATOR_API int emulator_last_error(int clear);
EMULATOR_API void emulator_set_error(int error);
EMULATOR_API size_t emulator_largest_shared(const void* kernel, int bytes);  // -1: only ask
EMULATOR_API const char* emulator_error_text(int error);
EMULATOR_API int emulator_synchronize();  // the error of a kernel that has failed

extern "C" __attribute__((visibility("default"))) char emulator_dynamic_shared[];
