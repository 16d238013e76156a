// What all sources share: the formula, the types in which it is computed, and the launchers.
#pragma once
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/macros/Macros.h>

#include <cmath>

using torch::headeronly::BFloat16, torch::headeronly::Half, torch::headeronly::ScalarType;

// y = scale * relu(x)^2, for a CPU and for a GPU. A NaN stays a NaN, because NaN <= 0 is false.
template <typename Wide>
C10_HOST_DEVICE Wide formula(Wide x, Wide scale) {
  const Wide kept = x <= 0 ? Wide(0) : x;
  return scale * (kept * kept);
}

// Its gradient: the derivative of the loss by x, from `grad`, the derivative of the loss by y.
template <typename Wide>
C10_HOST_DEVICE Wide formula_backward(Wide grad, Wide x, Wide scale) {
  const Wide dx = (grad * scale) * (2 * x);
  return x <= 0 ? Wide(0) : dx;
}

// Calls run(T(), Wide()) for a dtype that is known only at run time. T is the type in memory, Wide
// the type to compute in: a 16-bit result is rounded only once. False: there is no kernel for it.
template <typename Run>
bool with_types(ScalarType dtype, Run run) {
  if (dtype == ScalarType::Float) {
    run(float(), float());
  } else if (dtype == ScalarType::Double) {
    run(double(), double());
  } else if (dtype == ScalarType::Half) {
    run(Half(), float());
  } else if (dtype == ScalarType::BFloat16) {
    run(BFloat16(), float());
  } else {
    return false;
  }
  return true;
}

// squared_relu_cpu.cpp
void squared_relu_cpu(void* y, const void* x, double scale, int64_t n, ScalarType dtype);
void squared_relu_backward_cpu(void* dx, const void* grad, const void* x, double scale, int64_t n,
                               ScalarType dtype);
// squared_relu_forward.cu and squared_relu_backward.cu. Return nullptr on success, otherwise a
// static error message. `stream` is a cudaStream_t.
const char* launch_squared_relu(void* y, const void* x, double scale, int64_t n, ScalarType dtype,
                                void* stream);
const char* launch_squared_relu_backward(void* dx, const void* grad, const void* x, double scale,
                                         int64_t n, ScalarType dtype, void* stream);
