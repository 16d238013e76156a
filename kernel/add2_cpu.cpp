// The CPU kernel of add2 and its launcher: a plain loop, shared out over torch's thread pool.
//
// On x86-64 it is compiled twice, for any processor and for those with AVX2, and the library
// chooses when it is loaded. So one library serves every x86-64.
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "add2.h"

#if defined(__x86_64__)
#include <immintrin.h>
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

void add2(void* c, const void* a, const void* b, int64_t begin, int64_t end, Add2Dtype dtype) {
  if (dtype == ADD2_FLOAT32) loop<float>(c, a, b, begin, end);
  if (dtype == ADD2_FLOAT64) loop<double>(c, a, b, begin, end);
  if (dtype == ADD2_FLOAT16) loop<Half>(c, a, b, begin, end);
  if (dtype == ADD2_BFLOAT16) loop<BFloat16>(c, a, b, begin, end);
}

#if defined(__x86_64__)
#define FOR_AVX2 __attribute__((target("avx2,f16c")))

// Eight at a time by F16C, the instructions that convert float16. (From the loop above compilers
// make a dozen integer instructions and a branch for each conversion.)
FOR_AVX2 void add_halves(void* c, const void* a, const void* b, int64_t begin, int64_t end) {
  auto* out = static_cast<Half*>(c);
  auto *x = static_cast<const Half*>(a), *y = static_cast<const Half*>(b);
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m128i left = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    const __m128i right = _mm_loadu_si128(reinterpret_cast<const __m128i*>(y + i));
    const __m256 sum = _mm256_add_ps(_mm256_cvtph_ps(left), _mm256_cvtph_ps(right));
    const __m128i rounded = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), rounded);
  }
  loop<Half>(c, a, b, i, end);  // fewer than eight
}

FOR_AVX2 void add2_avx2(void* c, const void* a, const void* b, int64_t begin, int64_t end,
                        Add2Dtype dtype) {
  if (dtype == ADD2_FLOAT32) loop<float>(c, a, b, begin, end);
  if (dtype == ADD2_FLOAT64) loop<double>(c, a, b, begin, end);
  if (dtype == ADD2_FLOAT16) add_halves(c, a, b, begin, end);
  if (dtype == ADD2_BFLOAT16) loop<BFloat16>(c, a, b, begin, end);
}

// Every processor with AVX2 also has F16C.
const auto kAdd2 = __builtin_cpu_supports("avx2") ? add2_avx2 : add2;
#else
const auto kAdd2 = add2;
#endif

}  // namespace

extern "C" const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                       Add2Dtype dtype) {
  if (dtype < ADD2_FLOAT32 || dtype > ADD2_BFLOAT16) return "unknown dtype";
  torch::stable::parallel_for(
      0, n, kGrainSize, [=](int64_t begin, int64_t end) { kAdd2(c, a, b, begin, end, dtype); });
  return nullptr;
}
