// The classic binding: a Python module made with pybind11 over ATen, as most examples still do it.
// Built on request
// (--binding pybind11), to compare it with kernel/add2.cpp.
//
// What it costs: it compiles ten times longer, although it avoids <torch/extension.h>, which would
// double that; and the library fits only the very torch and the very Python that it was built with.
// What it buys: the cheapest call there is, because nothing stands between Python and the function:
// no dispatcher. For the same reason autograd, torch.compile, vmap, autocast and torch.export see
// nothing of it; a gradient has to be written by hand.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/pybind.h>  // how pybind11 turns a Python tensor into an at::Tensor
#ifdef ADD2_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <utility>

#include "add2.h"
#include "add2_checks.h"

namespace {

checks::Argument describe(const char* name, const at::Tensor& tensor) {
  using checks::Argument;
  // The dispatcher would have refused these by their key; here they must be asked.
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_neg() ||
      !(tensor.is_cpu() || tensor.is_cuda())) {
    checks::refuse("add2: ", name, " is of type ", tensor.toString(),
                   ", expected a dense tensor on a CPU or a CUDA device");
  }
  const auto device = tensor.is_cuda() ? Argument::CUDA : Argument::CPU;
  return {name,
          tensor.scalar_type(),
          device,
          tensor.get_device(),
          tensor.numel(),
          tensor.is_contiguous(),
          tensor.const_data_ptr(),
          tensor.dim(),
          tensor.sizes().data(),
          tensor.strides().data()};
}

// torch_launch_add2(c, a, b, n): c[0:n] = a[0:n] + b[0:n], checked and launched as by the
// dispatcher's operator.
void torch_launch_add2(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, int64_t n) {
  const Add2Dtype dtype =
      checks::check_launch(describe("c", c), describe("a", a), describe("b", b), n);
  // The dispatcher's operator has a kernel for this; here nothing stands between the caller and c.
  if (at::GradMode::is_enabled() && (c.requires_grad() || a.requires_grad() || b.requires_grad())) {
    checks::refuse("torch_launch_add2: an argument requires grad, expected none outside no_grad()");
  }
  c.unsafeGetTensorImpl()->bump_version();                  // a graph that has saved c must notice
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
    error = "this library was built without CUDA code";
#endif
  }
  if (error) checks::refuse("torch_launch_add2: ", error);
}

// A pair for a torch.autograd.Function. Written over ATen, there is one function for CPU and GPU,
// and no kernel at all: at::add looks at its tensors and calls torch's own.
at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
  checks::check_add2(describe("a", a), describe("b", b));
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
