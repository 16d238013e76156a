// For operators in C++, on torch's ABI-stable headers: refuse a call, check its arguments, find the
// current stream. kernel/add2.cpp shows the same in one file. The build defines USE_CUDA, as torch
// calls it, where CUDA sources are part of the library.
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

// Weak: a torch without CUDA does not define it, and such a torch must load the library, too. So
// the library is linked with -Wl,--no-as-needed -ltorch: libtorch.so brings what torch has.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);
struct CUstream_st;  // a cudaStream_t points to it

inline std::string text(Sizes sizes) {
  std::string all;
  for (const int64_t size : sizes) all += (all.empty() ? "" : ", ") + std::to_string(size);
  return "[" + all + "]";
}
inline std::string text(torch::stable::Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index());
}

// x, or a copy of it, contiguous and at an address that is a multiple of 16, as kernels want it
// that load 16 bytes at a time.
inline Tensor contiguous_16(const Tensor& x) {
  const Tensor y = torch::stable::contiguous(x);
  return reinterpret_cast<uintptr_t>(y.const_data_ptr()) % 16 == 0 ? y : torch::stable::clone(y);
}

struct Operator {
  const char* name;

  // Python sees a RuntimeError with this text. (STD_TORCH_CHECK prints a line number through
  // iostreams, which crashes where the compiler is set up to link the C++ runtime statically.)
  template <typename... Words>
  [[noreturn]] void refuse(const Words&... words) const {
    throw std::runtime_error(((name + std::string(": ")) + ... + words));
  }

  // torch lets Python's None pass for a tensor; and a tensor whose memory has been freed, as by
  // x.untyped_storage().resize_(0), still has its shape. (Its address need not be null: that of a
  // view which does not begin at the storage's first byte is not.)
  void expect_tensor(const char* argument, const Tensor& x) const {
    if (!x.defined()) refuse(argument, " is None, expected a tensor");
    int64_t bytes = 0, end = x.storage_offset() + 1;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(x.get(), &bytes));
    for (int64_t i = 0; i < x.dim(); ++i) end += (x.size(i) - 1) * x.stride(i);
    if (x.numel() > 0 && end * static_cast<int64_t>(x.element_size()) > bytes)
      refuse(argument, " has no memory: its storage has been freed");
  }

  // A tensor of this dtype and shape, on the device of `like`.
  void expect(const char* argument, const Tensor& x, const Tensor& like, ScalarType type,
              Sizes sizes) const {
    expect_tensor(argument, x);
    if (x.scalar_type() != type || !x.sizes().equals(sizes)) {
      refuse(argument, " is ", toString(x.scalar_type()), text(x.sizes()), ", expected ",
             toString(type), text(sizes));
    }
    if (x.device() != like.device())
      refuse(argument, " is on ", text(x.device()), ", expected ", text(like.device()));
  }

  // Calls launch(stream) with the stream that is current on x's GPU, and makes that GPU the current
  // one: kernels run there. Refuses with the error message that launch() may return.
  template <typename Launch>
  void on_gpu(const Tensor& x, Launch launch) const {
    if (!aoti_torch_get_current_cuda_stream)
      refuse("torch's CUDA functions are not found: link with -Wl,--no-as-needed -ltorch");
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    if (const char* error = launch(static_cast<CUstream_st*>(stream))) refuse(error);
  }
};
