// The CPU kernel of add2 and its launcher: a plain loop, shared out over torch's thread pool.
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "add2.h"

// The compiler makes a second copy of such a function, for processors with AVX2, and loading the
// library chooses the right one. So one library serves every x86-64.
#if defined(__x86_64__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("default", "avx2")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

// Below this many elements a second thread costs more than it saves. torch uses the same.
constexpr int64_t kGrainSize = 32768;

// Half and BFloat16 add in float32 and round once, as torch does. always_inline, so that the loop
// is compiled for the processor that its caller is compiled for.
template <typename T>
__attribute__((always_inline)) inline void loop(void* c, const void* a, const void* b,
                                                int64_t begin, int64_t end) {
  auto* out = static_cast<T*>(c);
  auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  for (int64_t i = begin; i < end; ++i) out[i] = x[i] + y[i];
}

FOR_EACH_PROCESSOR void add2(void* c, const void* a, const void* b, int64_t begin, int64_t end,
                             Add2Dtype dtype) {
  if (dtype == ADD2_FLOAT32) loop<float>(c, a, b, begin, end);
  if (dtype == ADD2_FLOAT64) loop<double>(c, a, b, begin, end);
  if (dtype == ADD2_FLOAT16) loop<Half>(c, a, b, begin, end);
  if (dtype == ADD2_BFLOAT16) loop<BFloat16>(c, a, b, begin, end);
}

}  // namespace

extern "C" const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                       Add2Dtype dtype) {
  if (dtype < ADD2_FLOAT32 || dtype > ADD2_BFLOAT16) return "unknown dtype";
  torch::stable::parallel_for(
      0, n, kGrainSize, [=](int64_t begin, int64_t end) { add2(c, a, b, begin, end, dtype); });
  return nullptr;
}
