// One addition, reached in several ways, so that their host costs can be compared (layers.py).
// torch's stable headers and pybind11's side by side: only a measurement needs both in one file.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/utils/pybind.h>

#include "add2.h"

using torch::stable::Tensor;
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

// c = a + b of contiguous float32 tensors of one shape and device, from addresses.
void launch(void* c, const void* a, const void* b, int64_t n, bool is_cpu, int32_t device) {
  const char* error;
#ifdef WITH_CUDA
  if (!is_cpu) {
    const torch::stable::accelerator::DeviceGuard guard(device);
    void* stream;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    error = launch_add2_cuda(c, a, b, n, ADD2_FLOAT32, static_cast<CUstream_st*>(stream));
  } else
#endif
    error = launch_add2_cpu(c, a, b, n, ADD2_FLOAT32);
  if (error) throw std::runtime_error(error);
}

Tensor add(const Tensor& a, const Tensor& b) {
  const Tensor c = torch::stable::empty_like(a);
  launch(c.mutable_data_ptr(), a.const_data_ptr(), b.const_data_ptr(), a.numel(), a.is_cpu(),
         a.get_device_index());
  return c;
}

Tensor add_often(const Tensor& a, const Tensor& b, int64_t times) {
  for (int64_t i = 1; i < times; ++i) add(a, b);
  return add(a, b);
}

STABLE_TORCH_LIBRARY(ways_layers, m) {
  for (const char* name : {"plain", "key", "registered"}) {
    m.def((std::string(name) + "(Tensor a, Tensor b) -> Tensor").c_str());
  }
  m.def("add_often(Tensor a, Tensor b, int times) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(ways_layers, CompositeExplicitAutograd, m) {
  for (const char* name : {"plain", "key", "registered"}) m.impl(name, TORCH_BOX(&add));
  m.impl("add_often", TORCH_BOX(&add_often));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("add", [](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor c = at::empty_like(a);
    launch(c.mutable_data_ptr(), a.const_data_ptr(), b.const_data_ptr(), a.numel(), a.is_cpu(),
           a.get_device());
    return c;
  });
}
