// The CPU kernel of add2 and its launcher: a loop, split over torch's thread pool.
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
__attribute__((always_inline)) inline void add(T* c, const T* a, const T* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

struct OnAnyProcessor {
  template <typename T>
  static void add(T* c, const T* a, const T* b, int64_t n) {
    ::add(c, a, b, n);
  }
};

#if defined(__x86_64__)
#define FOR_AVX2 __attribute__((target("avx2,f16c")))

struct WithAvx2 {
  template <typename T>
  FOR_AVX2 static void add(T* c, const T* a, const T* b, int64_t n) {
    ::add(c, a, b, n);
  }

  // Eight at a time by F16C, the instructions that convert float16. (From the loop above compilers
  // make a dozen integer instructions and a branch for each conversion.)
  FOR_AVX2 static void add(Half* c, const Half* a, const Half* b, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i));
      const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i));
      const __m256 sum = _mm256_add_ps(_mm256_cvtph_ps(x), _mm256_cvtph_ps(y));
      const __m128i rounded = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(c + i), rounded);
    }
    for (; i < n; ++i) {
      const float sum = _cvtsh_ss(a[i].x) + _cvtsh_ss(b[i].x);
      c[i].x = _cvtss_sh(sum, _MM_FROUND_TO_NEAREST_INT);
    }
  }
};

const bool kHasAvx2 = __builtin_cpu_supports("avx2");  // every such processor also has F16C
#else
using WithAvx2 = OnAnyProcessor;
const bool kHasAvx2 = false;
#endif

template <typename T>
const char* launch(void* c, const void* a, const void* b, int64_t n) {
  auto* out = static_cast<T*>(c);
  auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  torch::stable::parallel_for(0, n, kGrainSize, [&](int64_t begin, int64_t end) {
    if (kHasAvx2) {
      WithAvx2::add(out + begin, x + begin, y + begin, end - begin);
    } else {
      OnAnyProcessor::add(out + begin, x + begin, y + begin, end - begin);
    }
  });
  return nullptr;
}

}  // namespace

extern "C" const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                       Add2Dtype dtype) {
  switch (dtype) {
    case ADD2_FLOAT32:
      return launch<float>(c, a, b, n);
    case ADD2_FLOAT64:
      return launch<double>(c, a, b, n);
    case ADD2_FLOAT16:
      return launch<Half>(c, a, b, n);
    case ADD2_BFLOAT16:
      return launch<BFloat16>(c, a, b, n);
  }
  return "unknown dtype";
}
