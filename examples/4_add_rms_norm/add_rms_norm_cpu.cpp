// The operator on a CPU, in plain loops and double precision: the reference to read first.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <type_traits>
#include <vector>

#include "add_rms_norm.h"

namespace {

template <typename T>
using Statistics = std::conditional_t<std::is_same_v<T, double>, double, float>;

// double has no direct way to the 16-bit types; float has.
template <typename T>
T round_to(double x) {
  return static_cast<T>(static_cast<Statistics<T>>(x));
}

template <typename T>
void forward(T* y, T* s, Statistics<T>* rstd, const T* a, const T* b, const T* weight, double eps,
             int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, y += width, s += width, a += width, b += width) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      s[i] = a[i] + b[i];
      squares += static_cast<double>(s[i]) * static_cast<double>(s[i]);
    }
    rstd[row] = static_cast<Statistics<T>>(1 / std::sqrt(squares / width + eps));
    for (int64_t i = 0; i < width; ++i) {
      y[i] = round_to<T>(static_cast<double>(s[i]) * rstd[row] * static_cast<double>(weight[i]));
    }
  }
}

// With x = s * rstd and g = dy * weight: dx = rstd * (g - x * mean(g * x)) + ds, and dweight is the
// sum over the rows of dy * x.
template <typename T>
void backward(T* dx, T* dweight, const T* dy, const T* ds, const T* s, const T* weight,
              const Statistics<T>* rstd, int64_t rows, int64_t width) {
  std::vector<double> sums(width);
  for (int64_t row = 0; row < rows; ++row) {
    const double scale = rstd[row];
    const int64_t start = row * width;
    double product = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double x = static_cast<double>(s[start + i]) * scale;
      const double grad = static_cast<double>(dy[start + i]);
      product += grad * static_cast<double>(weight[i]) * x;
      sums[i] += grad * x;
    }
    for (int64_t i = 0; i < width; ++i) {
      const double x = static_cast<double>(s[start + i]) * scale;
      const double g = static_cast<double>(dy[start + i]) * static_cast<double>(weight[i]);
      const double more = ds == nullptr ? 0 : static_cast<double>(ds[start + i]);
      dx[start + i] = round_to<T>(scale * (g - x * (product / width)) + more);
    }
  }
  for (int64_t i = 0; i < width; ++i) dweight[i] = round_to<T>(sums[i]);
}

// From a dtype known at run time to a type known at compile time.
template <typename Function>
const char* with_type(RmsDtype dtype, Function function) {
  switch (dtype) {
    case RMS_FLOAT32:
      function(float());
      return nullptr;
    case RMS_FLOAT64:
      function(double());
      return nullptr;
    case RMS_FLOAT16:
      function(c10::Half());
      return nullptr;
    case RMS_BFLOAT16:
      function(c10::BFloat16());
      return nullptr;
  }
  return "unknown dtype";
}

}  // namespace

extern "C" const char* add_rms_norm_cpu(void* y, void* s, void* rstd, const void* a, const void* b,
                                        const void* weight, double eps, int64_t rows, int64_t width,
                                        RmsDtype dtype) {
  return with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    forward(static_cast<T*>(y), static_cast<T*>(s), static_cast<Statistics<T>*>(rstd),
            static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(weight), eps,
            rows, width);
  });
}

extern "C" const char* add_rms_norm_backward_cpu(void* dx, void* dweight, const void* dy,
                                                 const void* ds, const void* s, const void* weight,
                                                 const void* rstd, int64_t rows, int64_t width,
                                                 RmsDtype dtype) {
  return with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    backward(static_cast<T*>(dx), static_cast<T*>(dweight), static_cast<const T*>(dy),
             static_cast<const T*>(ds), static_cast<const T*>(s), static_cast<const T*>(weight),
             static_cast<const Statistics<T>*>(rstd), rows, width);
  });
}
