// RMSNorm's kernel for any width, without the others of its operator, which take long to compile.
#include "forward.cuh"

template <typename T, int kSize>
const char* launch_any(T* y, T* s, void* rstd, const T* a, const T* b, const void* weight,
                       bool is_wide, double eps, int64_t rows, int64_t width) {
  using F = Statistics<T>;
  forward_any<T, kSize><<<unsigned(rows), kMostThreads>>>(y, s, static_cast<F*>(rstd), a, b,
                                                          Weight{weight, is_wide}, F(eps), width);
  return cudaGetLastError() ? "the launch failed" : nullptr;
}

extern "C" const char* launch_half(bool is_whole, __half* y, __half* s, float* rstd, const __half* a,
                                   const __half* b, const void* weight, bool is_wide, double eps,
                                   int64_t rows, int64_t width) {
  if (is_whole) return launch_any<__half, 8>(y, s, rstd, a, b, weight, is_wide, eps, rows, width);
  return launch_any<__half, 1>(y, s, rstd, a, b, weight, is_wide, eps, rows, width);
}
extern "C" const char* launch_double(bool is_whole, double* y, double* s, double* rstd,
                                     const double* a, const double* b, const void* weight,
                                     bool is_wide, double eps, int64_t rows, int64_t width) {
  if (is_whole) return launch_any<double, 2>(y, s, rstd, a, b, weight, is_wide, eps, rows, width);
  return launch_any<double, 1>(y, s, rstd, a, b, weight, is_wide, eps, rows, width);
}
