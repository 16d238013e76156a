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

// Forward.
template <typename T, typename W>
void compute(const RmsForward& x) {
  T *y = static_cast<T*>(x.y), *s = static_cast<T*>(x.s);
  const T *a = static_cast<const T*>(x.a), *b = static_cast<const T*>(x.b);
  const W* weight = static_cast<const W*>(x.weight);
  auto* rstd = static_cast<Statistics<T>*>(x.rstd);
  const int64_t width = x.width;
  for (int64_t row = 0; row < x.rows; ++row, y += width, s += width, a += width, b += width) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      s[i] = a[i] + b[i];
      squares += double(s[i]) * double(s[i]);
    }
    rstd[row] = 1 / std::sqrt(squares / width + x.eps);
    for (int64_t i = 0; i < width; ++i) y[i] = double(s[i]) * rstd[row] * double(weight[i]);
  }
}

// Backward. With x = s * rstd and g = dy * weight: dx = rstd * (g - x * mean(g * x)) + ds, and
// dweight is the sum over the rows of dy * x.
template <typename T, typename W>
void compute(const RmsBackward& of) {
  const T *dy = static_cast<const T*>(of.dy), *ds = static_cast<const T*>(of.ds);
  const T* s = static_cast<const T*>(of.s);
  const W* weight = static_cast<const W*>(of.weight);
  T* dx = static_cast<T*>(of.dx);
  std::vector<double> sums(of.width);
  for (int64_t row = 0; row < of.rows; ++row) {
    const double scale = static_cast<const Statistics<T>*>(of.rstd)[row];
    const int64_t start = row * of.width;
    double product = 0;
    for (int64_t i = 0; i < of.width; ++i) {
      const double x = s[start + i] * scale, grad = dy[start + i];
      product += grad * weight[i] * x;
      sums[i] += grad * x;
    }
    for (int64_t i = 0; i < of.width; ++i) {
      const double x = s[start + i] * scale, g = double(dy[start + i]) * weight[i];
      const double more = ds == nullptr ? 0 : double(ds[start + i]);
      dx[start + i] = scale * (g - x * (product / of.width)) + more;
    }
  }
  for (int64_t i = 0; i < of.width; ++i) static_cast<W*>(of.dweight)[i] = sums[i];
}

template <typename Arguments>
void compute_dtype(const Arguments& x) {
  const bool is_wide = x.weight_dtype == RMS_FLOAT32;  // with the 16-bit dtypes, too
  if (x.dtype == RMS_FLOAT32) compute<float, float>(x);
  if (x.dtype == RMS_FLOAT64) compute<double, double>(x);
  if (x.dtype == RMS_FLOAT16 && is_wide) compute<c10::Half, float>(x);
  if (x.dtype == RMS_FLOAT16 && !is_wide) compute<c10::Half, c10::Half>(x);
  if (x.dtype == RMS_BFLOAT16 && is_wide) compute<c10::BFloat16, float>(x);
  if (x.dtype == RMS_BFLOAT16 && !is_wide) compute<c10::BFloat16, c10::BFloat16>(x);
}

}  // namespace

void add_rms_norm_cpu(const RmsForward& x) { compute_dtype(x); }
void add_rms_norm_cpu(const RmsBackward& x) { compute_dtype(x); }
