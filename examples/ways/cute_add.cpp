// cute_kernel.py's object file as an operator. The library needs no Python, and nothing of CuTe
// DSL.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "cute_add.h"

using torch::stable::Tensor;
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

Tensor add(const Tensor& a, const Tensor& b) {
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  static cute_add_Kernel_Module_t kernel = [] {  // on the first call, for all GPUs
    cute_add_Kernel_Module_t loaded;
    cute_add_Kernel_Module_Load(&loaded);  // prints its errors; the launch then returns one
    return loaded;
  }();
  const Tensor c = torch::stable::empty_like(a);
  void* stream;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(a.get_device_index(), &stream));
  const int error =
      cute_dsl_cute_add_wrapper(&kernel, c.mutable_data_ptr(), a.data_ptr(), b.data_ptr(),
                                a.numel(), static_cast<cudaStream_t>(stream));
  if (error) throw std::runtime_error("cute_add: CUDA error " + std::to_string(error));
  return c;
}

STABLE_TORCH_LIBRARY(ways_cute, m) { m.def("add(Tensor a, Tensor b) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(ways_cute, CUDA, m) { m.impl("add", TORCH_BOX(&add)); }
