// The CPU kernel of add2 and its launcher: a loop that the compiler vectorizes, shared out over
// torch's thread pool.
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <exception>

#include "add2.h"

namespace {

// Below this many elements a second thread costs more than it saves; torch's own element-wise
// kernels use the same.
constexpr int64_t kGrainSize = 32768;

template <typename T>
void add2_cpu(void* c, const void* a, const void* b, int64_t n) {
  T* out = static_cast<T*>(c);
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  torch::stable::parallel_for(0, n, kGrainSize, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] + y[i];
  });
}

}  // namespace

extern "C" const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                       Add2Dtype dtype) try {
  switch (dtype) {
    case ADD2_FLOAT32:
      add2_cpu<float>(c, a, b, n);
      return nullptr;
    case ADD2_FLOAT64:
      add2_cpu<double>(c, a, b, n);
      return nullptr;
    case ADD2_FLOAT16:  // added in float32 and rounded once, as torch does
      add2_cpu<torch::headeronly::Half>(c, a, b, n);
      return nullptr;
    case ADD2_BFLOAT16:
      add2_cpu<torch::headeronly::BFloat16>(c, a, b, n);
      return nullptr;
  }
  return "unknown dtype";
} catch (const std::exception&) {
  return "torch's thread pool refused the work";
}
