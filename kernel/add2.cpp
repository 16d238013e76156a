// The operator: checks its tensors, finds the device's current stream, launches. Registered with
// torch's dispatcher.
//
// Only torch's ABI-stable headers (torch/csrc/stable) are included: they compile in one second
// instead of thirty, and the library runs on every torch from 2.10 on, whichever it was built with.
// The build defines TORCH_TARGET_VERSION to say so, and ADD2_WITH_CUDA where add2_kernel.cu is part
// of the library.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "add2.h"
#include "add2_checks.h"

using torch::stable::Tensor;

// torch declares it under USE_CUDA only, and a torch without CUDA does not have it: weak, so that
// this library loads there too. It is called for CUDA tensors alone, and those exist only where the
// function does.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace {

const char* launch(const Tensor& c, const Tensor& a, const Tensor& b, int64_t n, Add2Dtype dtype) {
  void* out = c.mutable_data_ptr();
  const void* x = a.const_data_ptr();
  const void* y = b.const_data_ptr();
  if (c.is_cpu()) return launch_add2_cpu(out, x, y, n, dtype);
#ifdef ADD2_WITH_CUDA
  // A kernel runs on the current device. Tensors may live on another one; then it is made current
  // until the guard goes out of scope. Asking first is cheaper than a guard, and almost always
  // enough.
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  const int32_t device = c.get_device();
  if (torch::stable::accelerator::getCurrentDeviceIndex() != device) guard.emplace(device);
  // The caller's stream, as in `with torch.cuda.stream(s):`, not stream 0: torch's own kernels are
  // queued there.
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return launch_add2_cuda(out, x, y, n, dtype, static_cast<CUstream_st*>(stream));
#else
  return "this library was built without CUDA code; build it where nvcc is, or move the tensors "
         "to the CPU";
#endif
}

// A new tensor with a's shape, dtype and device, and contiguous whatever a is.
Tensor empty_contiguous_like(const Tensor& a) {
  const auto sizes = a.sizes();
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i > 1; --i) {
    strides[i - 2] = strides[i - 1] * (sizes[i - 1] > 1 ? sizes[i - 1] : 1);
  }
  int32_t dtype, device_type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(a.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(a.get(), &device_type));
  AtenTensorHandle c;
  if (aoti_torch_empty_strided(sizes.size(), sizes.data(), strides.data(), dtype, device_type,
                               a.get_device_index(), &c) != TORCH_SUCCESS) {
    checks::refuse("add2: torch could not allocate the result of shape ", checks::shape_text(a),
                   " on ", checks::device_text(a), "; its reason is printed on stderr");
  }
  return Tensor(c);
}

Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

Tensor add2(const Tensor& a, const Tensor& b) {
  const Add2Dtype dtype = checks::check_add2(a, b);
  Tensor c = empty_contiguous_like(a);
  const char* error = launch(c, dense(a), dense(b), c.numel(), dtype);
  if (error) checks::refuse("add2: ", error);
  return c;
}

void torch_launch_add2(const Tensor& c, const Tensor& a, const Tensor& b, int64_t n) {
  const Add2Dtype dtype = checks::check_launch(c, a, b, n);
  const char* error = launch(c, dense(a), dense(b), n, dtype);
  if (error) checks::refuse("torch_launch_add2: ", error);
}

}  // namespace

// The schema is the operator's contract: (a!) says that c is written. An `int` of a schema is an
// int64_t in C++.
STABLE_TORCH_LIBRARY(add2, m) {
  m.def("add2(Tensor a, Tensor b) -> Tensor");
  m.def("torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, int n) -> ()");
}

// One function serves both devices: it asks the tensor. (Autograd, fake tensors and vmap are in
// add2/ops.py.)
STABLE_TORCH_LIBRARY_IMPL(add2, CPU, m) {
  m.impl("add2", TORCH_BOX(&add2));
  m.impl("torch_launch_add2", TORCH_BOX(&torch_launch_add2));
}

STABLE_TORCH_LIBRARY_IMPL(add2, CUDA, m) {
  m.impl("add2", TORCH_BOX(&add2));
  m.impl("torch_launch_add2", TORCH_BOX(&torch_launch_add2));
}
