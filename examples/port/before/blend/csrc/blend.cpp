// Checks, and the loop for a CPU.
#include "blend.h"

#include <ATen/Parallel.h>

static void check(const char* name, const at::Tensor& x, const at::Tensor& a,
                  at::ScalarType dtype) {
  TORCH_CHECK(x.device() == a.device(), name, " is on ", x.device(), ", expected ", a.device());
  TORCH_CHECK(x.sizes() == a.sizes(), name, " has another shape than expected");
  TORCH_CHECK(x.scalar_type() == dtype, name, " has another dtype than expected");
}

template <typename T>
static void mix_cpu(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const bool* mask,
                    double alpha, double beta) {
  const T *p = a.const_data_ptr<T>(), *q = b.const_data_ptr<T>();
  T* r = y.mutable_data_ptr<T>();
  at::parallel_for(0, a.numel(), 32768, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      r[i] = mask && !mask[i] ? p[i] : mix_one(p[i], q[i], alpha, beta);
    }
  });
}

static void mix(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const bool* mask,
                double alpha, double beta) {
#ifdef WITH_CUDA
  if (y.is_cuda()) return mix_cuda(y, a, b, mask, alpha, beta);
#endif
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(y.scalar_type(), "blend",
                                      [&] { mix_cpu<scalar_t>(y, a, b, mask, alpha, beta); });
}

at::Tensor blend(const at::Tensor& a, const at::Tensor& b, const OptionalTensor& mask,
                 double alpha) {
  check("b", b, a, a.scalar_type());
  if (mask) check("mask", *mask, a, at::kBool);
  const at::Tensor m = mask ? mask->contiguous() : at::Tensor();
  const at::Tensor x = a.contiguous(), y = at::empty_like(x);
  mix(y, x, b.contiguous(), mask ? m.const_data_ptr<bool>() : nullptr, alpha, 1 - alpha);
  return y;
}

at::Tensor sum_list(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(!tensors.empty(), "sum_list: expected at least one tensor");
  const at::Tensor& first = tensors[0];
  const at::Tensor y = at::zeros_like(first, at::MemoryFormat::Contiguous);
  for (const at::Tensor& x : tensors) {
    check("a tensor", x, first, first.scalar_type());
    mix(y, y, x.contiguous(), nullptr, 1, 1);
  }
  return y;
}
