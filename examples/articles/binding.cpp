// The classic binding: a Python module made with pybind11 over ATen, as most examples still do it.
// Built on request (--binding pybind11), to compare it with kernel/add2.cpp.
//
// Its price: it compiles ten times longer, although it avoids <torch/extension.h>, which would
// double that; and the library fits only the torch and the Python that it was built with.
// Its gain: the cheapest call there is, as no dispatcher stands between Python and the function.
// For the same reason autograd, torch.compile, vmap, autocast and torch.export do not see it, and a
// gradient has to be written by hand.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/pybind.h>  // how pybind11 turns a Python tensor into an at::Tensor
#ifdef ADD2_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <stdexcept>
#include <string>
#include <utility>

#include "add2.h"

namespace {

[[noreturn]] void refuse(const std::string& found) { throw std::runtime_error("add2: " + found); }

Add2Dtype dtype_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return ADD2_FLOAT32;
  if (x.scalar_type() == at::kDouble) return ADD2_FLOAT64;
  if (x.scalar_type() == at::kHalf) return ADD2_FLOAT16;
  if (x.scalar_type() == at::kBFloat16) return ADD2_BFLOAT16;
  refuse(std::string("no kernel for dtype ") + at::toString(x.scalar_type()));
}

// The dispatcher would have refused other kinds of tensors by their key; here they must be asked.
void check(const at::Tensor& x, const at::Tensor& c, int64_t n) {
  const bool is_plain = x.layout() == at::kStrided && x.is_contiguous() && !x.is_neg();
  const bool is_here = x.is_cpu() || x.is_cuda();
  const bool is_alike = x.device() == c.device() && x.scalar_type() == c.scalar_type();
  if (!is_plain || !is_here || !is_alike) {
    refuse("expected contiguous tensors of one dtype, on one CPU or CUDA device");
  }
  if (n < 0 || n > x.numel()) {
    refuse("n is " + std::to_string(n) + ", expected 0 to " + std::to_string(x.numel()));
  }
  if (x.requires_grad() && at::GradMode::is_enabled()) {
    refuse("an argument requires grad, and this call has no gradient; use torch.no_grad()");
  }
  at::assert_no_partial_overlap(c, x);  // c may be an input itself
}

// c[0:n] = a[0:n] + b[0:n]
void torch_launch_add2(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, int64_t n) {
  const Add2Dtype dtype = dtype_of(c);
  for (const at::Tensor* x : {&c, &a, &b}) check(*x, c, n);
  const char* error = nullptr;
  void* out = c.mutable_data_ptr();
  const void *x = a.const_data_ptr(), *y = b.const_data_ptr();
  if (c.is_cpu()) {
    error = launch_add2_cpu(out, x, y, n, dtype);
  } else {
#ifdef ADD2_WITH_CUDA
    const c10::cuda::CUDAGuard guard(c.device());
    error = launch_add2_cuda(out, x, y, n, dtype, c10::cuda::getCurrentCUDAStream());
#else
    error = "this library has no CUDA code; build it where nvcc is";
#endif
  }
  if (error) refuse(error);
  c.unsafeGetTensorImpl()->bump_version();  // a graph that has saved c must notice
}

// A pair for a torch.autograd.Function. at::add calls torch's own kernel for CPU or GPU.
at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) refuse("a and b differ in shape, and add2 does not broadcast");
  return at::add(a, b);
}
std::pair<at::Tensor, at::Tensor> backward(const at::Tensor& grad) { return {grad, grad}; }

}  // namespace

// TORCH_EXTENSION_NAME is the module's name; torch's build defines it. Nothing here needs Python's
// global lock: mod_gil_not_used() tells a free-threaded Python, call_guard tells the others.
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m, pybind11::mod_gil_not_used()) {
  using NoGil = pybind11::call_guard<pybind11::gil_scoped_release>;
  m.def("torch_launch_add2", &torch_launch_add2, NoGil());
  m.def("forward", &forward, NoGil());
  m.def("backward", &backward, NoGil());
}
