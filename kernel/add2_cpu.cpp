// The CPU kernels of add2 and their launcher: loops over rows, split over torch's thread pool.
//
// On x86-64 they are compiled twice, for any processor and for those with AVX2, and the library
// chooses when it is loaded. So one library serves every x86-64.
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <type_traits>

#include "strided.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

// Below this many elements a second thread costs more than it saves. torch uses the same.
constexpr int64_t kGrainSize = 32768;

// n consecutive elements of c; neighbours in a and b are a_step and b_step elements apart.
struct Row {
  void* c;
  const void *a, *b;
  int64_t n, a_step, b_step;
};

// Half and BFloat16 add in float32 and round once, as torch does. always_inline, so that the loop
// is compiled for the processor that its caller is compiled for. Steps that are constants let the
// compiler use vectors.
template <typename T, typename AStep, typename BStep>
__attribute__((always_inline)) inline void loop(const Row& row, AStep a_step, BStep b_step) {
  auto* out = static_cast<T*>(row.c);
  auto *x = static_cast<const T*>(row.a), *y = static_cast<const T*>(row.b);
  for (int64_t i = 0; i < row.n; ++i) out[i] = x[i * a_step] + y[i * b_step];
}

template <typename T>
__attribute__((always_inline)) inline void add(const Row& row) {
  const std::integral_constant<int64_t, 0> zero;
  const std::integral_constant<int64_t, 1> one;
  if (row.a_step == 1 && row.b_step == 1) return loop<T>(row, one, one);
  if (row.a_step == 1 && row.b_step == 0) return loop<T>(row, one, zero);
  if (row.a_step == 0 && row.b_step == 1) return loop<T>(row, zero, one);
  loop<T>(row, row.a_step, row.b_step);
}

void add2(const Row& row, Add2Dtype dtype) {
  if (dtype == ADD2_FLOAT32) add<float>(row);
  if (dtype == ADD2_FLOAT64) add<double>(row);
  if (dtype == ADD2_FLOAT16) add<Half>(row);
  if (dtype == ADD2_BFLOAT16) add<BFloat16>(row);
}

#if defined(__x86_64__)
#define FOR_AVX2 __attribute__((target("avx2,f16c")))

// Eight at a time by F16C, the instructions that convert float16. (From the loop above compilers
// make a dozen integer instructions and a branch for each conversion.)
FOR_AVX2 void add_halves(const Row& row) {
  auto* out = static_cast<Half*>(row.c);
  auto *x = static_cast<const Half*>(row.a), *y = static_cast<const Half*>(row.b);
  // Copied: the compiler must assume that a store through __m128i changes `row`.
  const int64_t n = row.n, a_step = row.a_step, b_step = row.b_step;
  Half copies[2][8];  // of an element that is the same for the whole row: its step is 0
  const Half *left = x, *right = y;
  if (a_step == 0) {
    left = copies[0];
    std::fill_n(copies[0], 8, *x);
  }
  if (b_step == 0) {
    right = copies[1];
    std::fill_n(copies[1], 8, *y);
  }
  const int64_t vectors = a_step <= 1 && b_step <= 1 ? n / 8 : 0;
  for (int64_t k = 0; k < vectors; ++k) {
    const auto* next_left = reinterpret_cast<const __m128i*>(left) + k * a_step;
    const auto* next_right = reinterpret_cast<const __m128i*>(right) + k * b_step;
    const __m256 sum = _mm256_add_ps(_mm256_cvtph_ps(_mm_loadu_si128(next_left)),
                                     _mm256_cvtph_ps(_mm_loadu_si128(next_right)));
    const __m128i rounded = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + k, rounded);
  }
  for (int64_t i = vectors * 8; i < n; ++i) {
    const float sum = _cvtsh_ss(x[i * a_step].x) + _cvtsh_ss(y[i * b_step].x);
    out[i].x = _cvtss_sh(sum, _MM_FROUND_TO_NEAREST_INT);
  }
}

FOR_AVX2 void add2_avx2(const Row& row, Add2Dtype dtype) {
  if (dtype == ADD2_FLOAT32) add<float>(row);
  if (dtype == ADD2_FLOAT64) add<double>(row);
  if (dtype == ADD2_FLOAT16) add_halves(row);
  if (dtype == ADD2_BFLOAT16) add<BFloat16>(row);
}

// Every processor with AVX2 also has F16C.
const auto kAdd2 = __builtin_cpu_supports("avx2") ? add2_avx2 : add2;
#else
const auto kAdd2 = add2;
#endif

}  // namespace

extern "C" const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                       Add2Dtype dtype) {
  Add2Walk row;  // of one dimension; the others stay unset
  row.count = row.a_steps[0] = row.b_steps[0] = 1;
  row.sizes[0] = n;
  return launch_strided_cpu(c, a, b, row, dtype);
}

const char* launch_strided_cpu(void* c, const void* a, const void* b, const Add2Walk& walk,
                               Add2Dtype dtype) {
  if (dtype < ADD2_FLOAT32 || dtype > ADD2_BFLOAT16) return "unknown dtype";
  const int64_t bytes = dtype == ADD2_FLOAT32 ? 4 : dtype == ADD2_FLOAT64 ? 8 : 2;
  torch::stable::parallel_for(0, walk.numel(), kGrainSize, [&](int64_t begin, int64_t end) {
    int64_t coordinates[Add2Walk::kMaxDims], rest = begin;
    auto* out = static_cast<char*>(c) + begin * bytes;
    auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
    const auto move = [&](int d, int64_t by) {
      x += by * walk.a_steps[d] * bytes;
      y += by * walk.b_steps[d] * bytes;
    };
    for (int d = 0; d < walk.count; ++d) {
      coordinates[d] = rest % walk.sizes[d];
      rest /= walk.sizes[d];
      move(d, coordinates[d]);
    }
    for (int64_t left = end - begin; left > 0;) {  // each turn adds one row, or the rest of one
      const int64_t length = std::min(left, walk.sizes[0] - coordinates[0]);
      kAdd2({out, x, y, length, walk.a_steps[0], walk.b_steps[0]}, dtype);
      left -= length;
      out += length * bytes;
      move(0, -coordinates[0]);
      coordinates[0] = 0;
      for (int d = 1; d < walk.count; ++d) {
        move(d, 1);
        if (++coordinates[d] < walk.sizes[d]) break;
        move(d, -walk.sizes[d]);
        coordinates[d] = 0;
      }
    }
  });
  return nullptr;
}
