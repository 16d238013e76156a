// The CPU kernel of add2 and its launcher, in the same order as the CUDA kernels: a plain loop,
// then 32 bytes at a time, then what large tensors need; shared out over torch's thread pool.
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "add2.h"

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

// Below this many elements a second thread costs more than it saves; torch's own element-wise
// kernels use the same.
constexpr int64_t kGrainSize = 32768;

// From this many bytes on, three tensors are more than most processors' caches hold. (A virtual
// machine is told the cache of the whole host: to ask for its size is no help.)
constexpr int64_t kLarge = 16 << 20;

// One thread's share of c = a + b.
template <typename T>
using Kernel = void (*)(T* c, const T* a, const T* b, int64_t n);

// 1. Plain. The compiler vectorizes it with what every processor of the kind has: 16 bytes on
// x86-64. Halves have no arithmetic there; Half and BFloat16 add in float32 and round once, as
// torch does.
template <typename T>
void add2_plain(T* c, const T* a, const T* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

#if defined(__x86_64__)
// 2. AVX2: 32 bytes at a time, on every x86-64 processor since 2015 or so. The target attribute
// compiles these functions alone for it, and find() asks the processor before it takes them: so
// one library serves all.
#define ADD2_AVX2 __attribute__((target("avx2,f16c")))

ADD2_AVX2 inline __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

ADD2_AVX2 inline __m256i add(const float* a, const float* b) {
  return _mm256_castps_si256(_mm256_add_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b)));
}

ADD2_AVX2 inline __m256i add(const double* a, const double* b) {
  return _mm256_castpd_si256(_mm256_add_pd(_mm256_loadu_pd(a), _mm256_loadu_pd(b)));
}

ADD2_AVX2 inline __m128i add_half(__m128i a, __m128i b) {
  return _mm256_cvtps_ph(_mm256_add_ps(_mm256_cvtph_ps(a), _mm256_cvtph_ps(b)),
                         _MM_FROUND_TO_NEAREST_INT);
}

ADD2_AVX2 inline __m256i add(const Half* a, const Half* b) {
  const __m256i x = load(a), y = load(b);
  return _mm256_set_m128i(add_half(_mm256_extracti128_si256(x, 1), _mm256_extracti128_si256(y, 1)),
                          add_half(_mm256_castsi256_si128(x), _mm256_castsi256_si128(y)));
}

// A bfloat16 is the upper half of a float32. Rounded to nearest, ties to even: add just less than
// half of the last place that stays, and one more where that place is odd. A NaN could become an
// infinity by it, so it is put back. The result stays in the lower halves.
ADD2_AVX2 inline __m256i add_bfloat16(__m256i a, __m256i b) {
  const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
  const __m256i bits = _mm256_castps_si256(sum);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
  const __m256i nan = _mm256_set1_epi32(0x7fc00000);
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
}

ADD2_AVX2 inline __m256i add(const BFloat16* a, const BFloat16* b) {
  const __m256i x = load(a), y = load(b), upper = _mm256_set1_epi32(0xffff0000);
  const __m256i even = add_bfloat16(_mm256_slli_epi32(x, 16), _mm256_slli_epi32(y, 16));
  const __m256i odd = add_bfloat16(_mm256_and_si256(x, upper), _mm256_and_si256(y, upper));
  return _mm256_or_si256(even, _mm256_slli_epi32(odd, 16));
}

// 3. Large: written past the caches ("streaming"). An ordinary store reads its cache line first,
// only to overwrite it: with streaming stores three tensors cross the memory bus instead of four.
template <typename T, bool kStreaming>
ADD2_AVX2 void add2_avx2(T* c, const T* a, const T* b, int64_t n) {
  constexpr int64_t kLanes = sizeof(__m256i) / sizeof(T);
  int64_t i = 0;
  if (kStreaming) {  // such a store needs an address at a multiple of 32
    i = (-reinterpret_cast<intptr_t>(c) & 31) / sizeof(T);
    if (i > n) i = n;
    add2_plain(c, a, b, i);
  }
#pragma GCC unroll 4
  for (; i + kLanes <= n; i += kLanes) {
    auto* out = reinterpret_cast<__m256i*>(c + i);
    if (kStreaming) {
      _mm256_stream_si256(out, add(a + i, b + i));
    } else {
      _mm256_storeu_si256(out, add(a + i, b + i));
    }
  }
  if (kStreaming) _mm_sfence();  // streaming stores are ordered by this alone
  if (i < n) {                   // what fills no vector, in one that is filled up
    T x[kLanes] = {}, y[kLanes] = {};
    std::memcpy(x, a + i, (n - i) * sizeof(T));
    std::memcpy(y, b + i, (n - i) * sizeof(T));
    const __m256i sum = add(x, y);
    std::memcpy(static_cast<void*>(c + i), &sum, (n - i) * sizeof(T));
  }
}

#endif  // x86-64

bool has_avx2() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
#else
  return false;
#endif
}

template <typename T>
Kernel<T> find(Add2Kernel kernel) {
  if (kernel == ADD2_KERNEL_PLAIN) return add2_plain<T>;
#if defined(__x86_64__)
  if (kernel == ADD2_KERNEL_SMALL && has_avx2()) return add2_avx2<T, false>;
  if (kernel == ADD2_KERNEL_LARGE && has_avx2()) return add2_avx2<T, true>;
#endif
  return nullptr;
}

template <typename T>
const char* launch(Add2Kernel kernel, void* c, const void* a, const void* b, int64_t n) {
  struct Work {
    T* c;
    const T *a, *b;
    Kernel<T> kernel;
  } work{static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b), find<T>(kernel)};
  if (!work.kernel) return "this processor, or the CPU, has no such kernel";
  const auto share = [](int64_t begin, int64_t end, void* of) {
    const Work& all = *static_cast<Work*>(of);
    all.kernel(all.c + begin, all.a + begin, all.b + begin, end - begin);
  };
  if (n <= kGrainSize) {
    share(0, n, &work);
  } else if (torch_parallel_for(0, n, kGrainSize, share, &work) != AOTI_TORCH_SUCCESS) {
    return "torch's thread pool refused the work";
  }
  return nullptr;
}

}  // namespace

extern "C" const char* launch_add2_cpu_kernel(Add2Kernel kernel, void* c, const void* a,
                                              const void* b, int64_t n, Add2Dtype dtype) {
  switch (dtype) {
    case ADD2_FLOAT32:
      return launch<float>(kernel, c, a, b, n);
    case ADD2_FLOAT64:
      return launch<double>(kernel, c, a, b, n);
    case ADD2_FLOAT16:
      return launch<Half>(kernel, c, a, b, n);
    case ADD2_BFLOAT16:
      return launch<BFloat16>(kernel, c, a, b, n);
  }
  return "unknown dtype";
}

extern "C" const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                       Add2Dtype dtype) {
  const int64_t bytes = n * (dtype == ADD2_FLOAT64 ? 8 : dtype == ADD2_FLOAT32 ? 4 : 2);
  const bool in_place =
      c == a || c == b;  // what is written has just been read: it is in the caches
  const Add2Kernel kernel = !has_avx2()                  ? ADD2_KERNEL_PLAIN
                            : bytes < kLarge || in_place ? ADD2_KERNEL_SMALL
                                                         : ADD2_KERNEL_LARGE;
  return launch_add2_cpu_kernel(kernel, c, a, b, n, dtype);
}
