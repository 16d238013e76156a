// Checks, and the loop for a CPU.
#include "blend.h"

#include <torch/csrc/stable/library.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include <stdexcept>
#include <string>

using torch::headeronly::ScalarType;

// Python sees a RuntimeError with this text.
static void check(const std::string& name, const Tensor& x, const Tensor& a, ScalarType dtype) {
  if (x.device() != a.device()) throw std::runtime_error(name + " is on another device");
  if (!x.sizes().equals(a.sizes())) throw std::runtime_error(name + " has another shape");
  if (x.scalar_type() != dtype) throw std::runtime_error(name + " has another dtype");
}

template <typename T>
static void mix_cpu(const Tensor& y, const Tensor& a, const Tensor& b, const bool* mask,
                    double alpha, double beta) {
  const T *p = a.const_data_ptr<T>(), *q = b.const_data_ptr<T>();
  T* r = y.mutable_data_ptr<T>();
  torch::stable::parallel_for(0, a.numel(), 32768, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      r[i] = mask && !mask[i] ? p[i] : mix_one(p[i], q[i], alpha, beta);
    }
  });
}

static void mix(const Tensor& y, const Tensor& a, const Tensor& b, const bool* mask, double alpha,
                double beta) {
  // Asked here, as THO_DISPATCH_V2 would send its message through iostreams.
  const ScalarType type = y.scalar_type();
  if (type != ScalarType::Float && type != ScalarType::Double && type != ScalarType::Half) {
    throw std::runtime_error(std::string("blend: not implemented for '") + toString(type) + "'");
  }
#ifdef WITH_CUDA
  if (y.is_cuda()) return mix_cuda(y, a, b, mask, alpha, beta);
#endif
  THO_DISPATCH_V2(type, "blend", AT_WRAP([&] { mix_cpu<scalar_t>(y, a, b, mask, alpha, beta); }),
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half);
}

Tensor blend(const Tensor& a, const Tensor& b, const std::optional<Tensor>& mask, double alpha) {
  check("b", b, a, a.scalar_type());
  if (mask) check("mask", *mask, a, ScalarType::Bool);
  const Tensor m = mask ? torch::stable::contiguous(*mask) : Tensor();
  const Tensor x = torch::stable::contiguous(a), y = torch::stable::empty_like(x);
  mix(y, x, torch::stable::contiguous(b), mask ? m.const_data_ptr<bool>() : nullptr, alpha,
      1 - alpha);
  return y;
}

Tensor sum_list(const std::vector<Tensor>& tensors) {
  const Tensor& first = tensors[0];
  const Tensor y = torch::stable::new_zeros(first, first.sizes());
  for (const Tensor& x : tensors) {
    check("a tensor", x, first, first.scalar_type());
    mix(y, y, torch::stable::contiguous(x), nullptr, 1, 1);
  }
  return y;
}

STABLE_TORCH_LIBRARY(blend, m) {
  m.def("blend(Tensor a, Tensor b, Tensor? mask, float alpha) -> Tensor");
  m.def("sum_list(Tensor[] tensors) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(blend, CPU, m) {
  m.impl("blend", TORCH_BOX(&blend));
  m.impl("sum_list", TORCH_BOX(&sum_list));
}
#ifdef WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(blend, CUDA, m) {
  m.impl("blend", TORCH_BOX(&blend));
  m.impl("sum_list", TORCH_BOX(&sum_list));
}
#endif
