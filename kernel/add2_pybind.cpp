// The classic binding: a Python module made with pybind11 over ATen, as most examples still do it.
// Built on request (--binding pybind11), to compare it with kernel/add2.cpp.
//
// Its price: it compiles ten times longer, although it avoids <torch/extension.h>, which would
// double that; and the library fits only the very torch and the very Python that it was built with.
// Its gain: the cheapest call there is, as no dispatcher stands between Python and the function.
// For the same reason autograd, torch.compile, vmap, autocast and torch.export do not see it, and a
// gradient has to be written by hand.
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

std::string text(at::IntArrayRef sizes) {
  std::string shape;
  for (int64_t size : sizes) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return "[" + shape + "]";
}

// The dispatcher would have refused these by their key; here they must be asked.
void check_dense(const char* name, const at::Tensor& x) {
  if (x.layout() != at::kStrided || x.is_quantized() || x.is_neg() ||
      !(x.is_cpu() || x.is_cuda())) {
    refuse(name + (" has type " + x.toString()) + ", expected a dense one on a CPU or CUDA device");
  }
}

void check_alike(const char* name, const at::Tensor& x, const at::Tensor& first) {
  check_dense(name, x);
  if (x.device() != first.device()) {
    refuse(name + (" is on " + x.device().str()) + ", expected " + first.device().str());
  }
  if (x.scalar_type() != first.scalar_type()) {
    refuse(name + std::string(" has dtype ") + at::toString(x.scalar_type()) + ", expected " +
           at::toString(first.scalar_type()));
  }
}

Add2Dtype check_dtype(const char* name, const at::Tensor& x) {
  check_dense(name, x);
  if (x.scalar_type() == at::kFloat) return ADD2_FLOAT32;
  if (x.scalar_type() == at::kDouble) return ADD2_FLOAT64;
  if (x.scalar_type() == at::kHalf) return ADD2_FLOAT16;
  if (x.scalar_type() == at::kBFloat16) return ADD2_BFLOAT16;
  refuse(name + std::string(" has dtype ") + at::toString(x.scalar_type()) +
         ", expected Float, Double, Half or BFloat16");
}

void check_overlap(const char* name, const at::Tensor& c, const at::Tensor& x) {
  const auto* c_begin = static_cast<const char*>(c.const_data_ptr());
  const auto* x_begin = static_cast<const char*>(x.const_data_ptr());
  if (x_begin == c_begin && x.is_contiguous()) return;
  int64_t reach = 1;
  for (int64_t i = 0; i < x.dim(); ++i) reach += (x.size(i) - 1) * x.stride(i);
  if (x_begin < c_begin + c.nbytes() && c_begin < x_begin + reach * x.element_size()) {
    refuse(std::string("c shares memory with ") + name + ", but is not " + name + " itself");
  }
}

// torch_launch_add2(c, a, b, n): c[0:n] = a[0:n] + b[0:n], checked and launched as by the
// dispatcher's operator.
void torch_launch_add2(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, int64_t n) {
  const Add2Dtype dtype = check_dtype("c", c);
  check_alike("a", a, c);
  check_alike("b", b, c);
  if (n < 0 || n > c.numel() || n > a.numel() || n > b.numel()) {
    refuse("n is " + std::to_string(n) + ", expected 0 or more, and no more than the elements of " +
           text(c.sizes()) + ", " + text(a.sizes()) + " and " + text(b.sizes()));
  }
  if (!c.is_contiguous()) refuse("c of shape " + text(c.sizes()) + " is not contiguous");
  if (at::GradMode::is_enabled() && (c.requires_grad() || a.requires_grad() || b.requires_grad())) {
    refuse("an argument requires grad, expected none outside no_grad()");
  }
  if (n > 0) check_overlap("a", c, a), check_overlap("b", c, b);
  const at::Tensor x = a.contiguous(), y = b.contiguous();  // copies only where they are not
  const char* error = nullptr;
  if (c.is_cpu()) {
    error = launch_add2_cpu(c.mutable_data_ptr(), x.const_data_ptr(), y.const_data_ptr(), n, dtype);
  } else {
#ifdef ADD2_WITH_CUDA
    const c10::cuda::CUDAGuard guard(c.device());
    error = launch_add2_cuda(c.mutable_data_ptr(), x.const_data_ptr(), y.const_data_ptr(), n, dtype,
                             c10::cuda::getCurrentCUDAStream());
#else
    error = "this library has no CUDA code; build it where nvcc is";
#endif
  }
  if (error) refuse(error);
  c.unsafeGetTensorImpl()->bump_version();  // a graph that has saved c must notice
}

// A pair for a torch.autograd.Function. Written over ATen, there is one function for CPU and GPU,
// and no kernel at all: at::add looks at its tensors and calls torch's own.
at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
  check_dtype("a", a);
  check_alike("b", b, a);
  if (a.sizes() != b.sizes()) {
    refuse("b has shape " + text(b.sizes()) + ", expected " + text(a.sizes()) +
           " like a (add2 does not broadcast)");
  }
  return at::add(a, b);
}

// d(a + b)/da = d(a + b)/db = 1
std::pair<at::Tensor, at::Tensor> backward(const at::Tensor& grad) { return {grad, grad}; }

}  // namespace

// TORCH_EXTENSION_NAME is the module's name; torch's build defines it.
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "add2, bound with pybind11";
  m.def("torch_launch_add2", &torch_launch_add2, "c[0:n] = a[0:n] + b[0:n]", pybind11::arg("c"),
        pybind11::arg("a"), pybind11::arg("b"), pybind11::arg("n"));
  m.def("forward", &forward, "a + b", pybind11::arg("a"), pybind11::arg("b"));
  m.def("backward", &backward, "the gradients of a and b, given that of forward's result",
        pybind11::arg("grad"));
}
