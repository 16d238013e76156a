// threadIdx and so on, and what the launches of a file become: kernel<<<grid, block>>>(x, y) is
// launch([&](auto& a, auto& b) { kernel(a, b); }, "kernel", file, line, {grid, block}, x, y).
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <exception>
#include <new>
#include <type_traits>
#include <utility>

#include "emulator/runtime.h"
#include "emulator/vectors.h"
#include "emulator/words.h"

// A compiler may keep a constant in a register: right, as a thread's index never changes, and
// another thread has other registers.
struct EmulatorExtent {
  unsigned int x, y, z;
  operator dim3() const { return dim3(x, y, z); }
  operator uint3() const { return {x, y, z}; }
};
extern const uint3 threadIdx __asm__("emulator_thread_index");
extern const uint3 blockIdx __asm__("emulator_block_index");
extern const EmulatorExtent blockDim __asm__("emulator_block_dim");
extern const EmulatorExtent gridDim __asm__("emulator_grid_dim");
constexpr int warpSize = 32;

typedef struct CUstream_st* cudaStream_t;

namespace emulator {

struct Configuration {
  dim3 grid, block;
  size_t shared;
  Configuration(dim3 grid, dim3 block = 1, size_t shared = 0, cudaStream_t = nullptr)
      : grid(grid), block(block), shared(shared) {}
  LaunchConfig as_config(const char* text, const char* file, int line) const {
    return {{grid.x, grid.y, grid.z},
            {block.x, block.y, block.z},
            shared,
            1,
            text,
            file,
            line,
            nullptr};
  }
};

// The arguments are evaluated once, as for a GPU; each thread gets a copy of their bytes, so a
// class's own copy constructor runs on the host only. (std::tuple would do, if its functions were
// not watched.)
template <size_t kIndex, typename T>
struct Argument {
  T value;
};
template <typename Indices, typename... T>
struct Arguments;
template <size_t... kIndex, typename... T>
struct Arguments<std::index_sequence<kIndex...>, T...> : Argument<kIndex, T>... {
  template <typename Call>
  EMULATOR_UNWATCHED void pass_to(Call& call) {
    call(static_cast<Argument<kIndex, T>&>(*this).value...);
  }
};

template <typename Call, typename... T>
struct Body {
  Call call;
  Arguments<std::index_sequence_for<T...>, T...> arguments;
  EMULATOR_UNWATCHED static void run(void* data) {
    using All = Arguments<std::index_sequence_for<T...>, T...>;
    auto& body = *static_cast<Body*>(data);
    alignas(All) char copy[sizeof(All)];
    __builtin_memcpy(copy, &body.arguments, sizeof(All));
    reinterpret_cast<All*>(copy)->pass_to(body.call);
  }
};

template <typename Call, typename... T>
EMULATOR_UNWATCHED void launch(Call call, const char* text, const char* file, int line,
                               const Configuration& how, T&&... arguments) {
  Body<Call, std::decay_t<T>...> body{call, {{std::forward<T>(arguments)}...}};
  const LaunchConfig config = how.as_config(text, file, line);
  emulator_launch(&config, &body.run, &body);
}

// A letter for each type, the result's first.
template <typename T>
constexpr char letter() {
  using U = std::remove_cv_t<T>;
  if (std::is_same_v<U, cudaStream_t>) return 's';
  if (std::is_same_v<U, const char*>) return 'z';
  if (std::is_reference_v<U>) return 'r';
  if (std::is_pointer_v<U>) return 'p';
  if (std::is_void_v<U>) return 'v';
  if (std::is_same_v<U, float>) return 'f';
  if (std::is_same_v<U, double>) return 'd';
  if (std::is_integral_v<U> || std::is_enum_v<U>) {
    const bool is_signed = std::is_signed_v<U> || std::is_enum_v<U>;
    return sizeof(U) == 1   ? (is_signed ? 'b' : 'B')
           : sizeof(U) == 2 ? (is_signed ? 'h' : 'H')
           : sizeof(U) == 4 ? (is_signed ? 'i' : 'I')
                            : (is_signed ? 'q' : 'Q');
  }
  return '?';
}

template <typename Result, typename... Parameters>
const char* signature() {
  static const char letters[] = {letter<Result>(), letter<Parameters>()..., 0};
  return letters;
}

// Calls a function with arguments of which only the addresses are known.
template <typename Result, typename... Parameters>
struct Untyped {
  template <size_t... kIndex>
  EMULATOR_UNWATCHED static Result call_each(const void* function, void** arguments,
                                             std::index_sequence<kIndex...>) {
    auto* typed = reinterpret_cast<Result (*)(Parameters...)>(const_cast<void*>(function));
    return typed(*static_cast<std::remove_reference_t<Parameters>*>(arguments[kIndex])...);
  }
  EMULATOR_UNWATCHED static const char* call(const void* function, void** arguments, void* result) {
    constexpr std::index_sequence_for<Parameters...> kIndices;
    try {
      if constexpr (std::is_void_v<Result>)
        call_each(function, arguments, kIndices);
      else
        new (result) Result(call_each(function, arguments, kIndices));
    } catch (const std::exception& error) {
      return strdup(error.what());
    } catch (...) {
      return strdup("an exception of another type than std::exception");
    }
    return nullptr;
  }
};

struct Launcher {  // a function of the host
  template <typename Result, typename... Parameters>
  Launcher(const char* name, Result (*function)(Parameters...)) {
    const char* (*call)(const void*, void**, void*) = nullptr;
    constexpr bool kIsPlain = std::is_void_v<Result> || std::is_scalar_v<Result>;
    if constexpr (kIsPlain && (... && (std::is_reference_v<Parameters> ||
                                       std::is_trivially_copyable_v<Parameters>)))
      call = &Untyped<Result, Parameters...>::call;
    emulator_export(name, reinterpret_cast<const void*>(function),
                    signature<Result, Parameters...>(), false, call);
  }
};

struct Kernel {
  template <typename... Parameters>
  Kernel(const char* name, void (*function)(Parameters...)) {
    emulator_export(name, reinterpret_cast<const void*>(function), signature<void, Parameters...>(),
                    true, &Untyped<void, Parameters...>::call);
  }
};

struct Variable {
  template <typename T>
  Variable(T& variable, const char* name, bool is_constant) {
    emulator_variable(const_cast<void*>(reinterpret_cast<const volatile void*>(&variable)),
                      sizeof(T), sizeof(std::remove_all_extents_t<T>), is_constant, name);
  }
};

template <typename Memory, typename T>
EMULATOR_INLINE void declare_shared(Memory& memory, T& array, const char* name) {
  emulator_shared(&memory, sizeof(Memory),
                  const_cast<void*>(reinterpret_cast<const volatile void*>(&array)), sizeof(T),
                  sizeof(std::remove_all_extents_t<T>), name);
}

// memcpy(), memmove() and memset() of the user's files.
template <typename T>
constexpr size_t alignment_of() {
  if constexpr (std::is_void_v<T>)
    return 1;
  else
    return alignof(T);
}
template <typename T, typename U>
EMULATOR_INLINE void* memory_copy(T* to, const U* from, size_t bytes) {
  return emulator_copy(const_cast<std::remove_cv_t<T>*>(to), alignment_of<T>(), from,
                       alignment_of<U>(), bytes);
}
template <typename T>
EMULATOR_INLINE void* memory_set(T* to, int value, size_t bytes) {
  return emulator_fill(to, alignment_of<T>(), value, bytes);
}

// asm("..." : "=r"(x) : "r"(y)) is ptx("...", operand("=r", x), operand("r", y)).
template <typename T>
struct Held {
  T value;
  const char *constraint, *name;
};
template <typename T>
EMULATOR_INLINE Held<T&&> operand(const char* constraint, T&& value, const char* name = nullptr) {
  return {static_cast<T&&>(value), constraint, name};
}
template <typename T>
EMULATOR_INLINE Operand as_operand(T& held) {
  return {held.constraint, const_cast<void*>(reinterpret_cast<const volatile void*>(&held.value)),
          sizeof(held.value), held.name};
}
template <typename... Operands>
EMULATOR_INLINE void ptx(const char* text, Operands&&... operands) {
  const Operand list[] = {as_operand(operands)..., {nullptr, nullptr, 0, nullptr}};
  emulator_ptx(text, list, sizeof...(Operands));
}

}  // namespace emulator
