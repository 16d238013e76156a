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
#include <utility>
#include <vector>

#include "add2.h"
#include "add2_checks.h"

using checks::Argument;
namespace boxed = torch::stable::detail;  // from() and to(): between C++ types and a StableIValue
using Tensor = AtenTensorHandle;          // a pointer to an at::Tensor, for torch's C functions

// torch declares it under USE_CUDA only, and a torch without CUDA does not have it: weak, so that
// this library loads there too. It is called for CUDA tensors alone, and those exist only where the
// function does.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace {

// torch numbers its dtypes behind functions. The four in question are asked for once, the others
// when one turns up.
checks::ScalarType dtype_of(int32_t dtype) {
  using checks::ScalarType;
  static const int32_t f32 = aoti_torch_dtype_float32(), f64 = aoti_torch_dtype_float64(),
                       f16 = aoti_torch_dtype_float16(), bf16 = aoti_torch_dtype_bfloat16();
  if (dtype == f32) return ScalarType::Float;
  if (dtype == f64) return ScalarType::Double;
  if (dtype == f16) return ScalarType::Half;
  if (dtype == bf16) return ScalarType::BFloat16;
  return boxed::to<ScalarType>(boxed::from(dtype));
}

Argument describe(const char* name, Tensor tensor, bool with_shape = false) {
  static const int32_t cpu = aoti_torch_device_type_cpu(), cuda = aoti_torch_device_type_cuda();
  int32_t device_type, device_index, dtype;
  Argument is{};
  is.name = name;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor, &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor, &device_index));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(tensor, &is.numel));
  TORCH_ERROR_CODE_CHECK(aoti_torch_is_contiguous(tensor, &is.contiguous));
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(tensor, &is.data));
  if (with_shape || !is.contiguous) {
    int64_t *sizes, *strides;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &is.dim));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &strides));
    is.sizes = sizes;
    is.strides = strides;
  }
  is.dtype = dtype_of(dtype);
  is.device_index = device_index;
  is.device = device_type == cpu    ? Argument::CPU
              : device_type == cuda ? Argument::CUDA
                                    : Argument::OTHER;
  return is;
}

// x and y are where n dense elements of a and b lie; like says on which device.
const char* launch(void* c, const void* x, const void* y, int64_t n, Add2Dtype dtype,
                   const Argument& like) {
  if (like.device == Argument::CPU) return launch_add2_cpu(c, x, y, n, dtype);
#ifdef ADD2_WITH_CUDA
  // A kernel runs on the current device. Tensors may live on another one; then it is made current
  // until the guard goes out of scope. Asking first is cheaper than a guard, and almost always
  // enough.
  const auto device = static_cast<int32_t>(like.device_index);
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (add2_current_cuda_device() != device) guard.emplace(device);
  // The caller's stream, as in `with torch.cuda.stream(s):`, not stream 0: torch's own kernels are
  // queued there.
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return launch_add2_cuda(c, x, y, n, dtype, static_cast<CUstream_st*>(stream));
#else
  return "this library was built without CUDA code; build it where nvcc is, or move the tensors "
         "to the CPU";
#endif
}

void* writable_data(Tensor tensor) {
  void* data;
  TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(tensor, &data));
  return data;
}

// The data of a tensor in row-major order. `copy` keeps a tensor that had to be copied for it
// alive.
const void* dense_data(Tensor tensor, const Argument& is,
                       std::optional<torch::stable::Tensor>& copy) {
  if (is.contiguous) return is.data;
  Tensor same;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(tensor, &same));
  copy = torch::stable::contiguous(torch::stable::Tensor(same));
  return copy->const_data_ptr();
}

// A new tensor with a's shape, dtype and device, and contiguous whatever a is.
Tensor empty_contiguous_like(Tensor tensor, const Argument& a) {
  std::vector<int64_t> strides(a.dim, 1);
  for (int64_t i = a.dim - 1; i > 0; --i) {
    strides[i - 1] = strides[i] * (a.sizes[i] > 1 ? a.sizes[i] : 1);
  }
  int32_t dtype, device_type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor, &device_type));
  Tensor c;
  if (aoti_torch_empty_strided(a.dim, a.sizes, strides.data(), dtype, device_type,
                               static_cast<int32_t>(a.device_index), &c) != TORCH_SUCCESS) {
    checks::refuse("add2: torch could not allocate the result of shape ", a.shape_text(), " on ",
                   a.device_text(), "; its reason is printed on stderr");
  }
  return c;
}

// A tensor that is ours to delete.
struct Owned {
  Tensor tensor;
  explicit Owned(Tensor handle) : tensor(handle) {}
  explicit Owned(StableIValue value) : tensor(boxed::to<Tensor>(value)) {}
  Owned(const Owned&) = delete;
  ~Owned() {
    if (tensor) aoti_torch_delete_tensor_object(tensor);
  }
};

// The dispatcher calls a "boxed" function: it takes its arguments off a stack, and leaves its
// result there. (TORCH_BOX(&f) makes one of any f on torch::stable::Tensor; written out it is a
// tenth of a microsecond faster.)

// add2(Tensor a, Tensor b) -> Tensor
void add2(StableIValue* stack, uint64_t, uint64_t) {
  const Owned a(stack[0]), b(stack[1]);
  const Argument a_is = describe("a", a.tensor, true), b_is = describe("b", b.tensor, true);
  const Add2Dtype dtype = checks::check_add2(a_is, b_is);
  Owned c(empty_contiguous_like(a.tensor, a_is));
  std::optional<torch::stable::Tensor> a_copy, b_copy;
  const char* error = launch(writable_data(c.tensor), dense_data(a.tensor, a_is, a_copy),
                             dense_data(b.tensor, b_is, b_copy), a_is.numel, dtype, a_is);
  if (error) checks::refuse("add2: ", error);
  stack[0] = boxed::from(std::exchange(c.tensor, nullptr));
}

// torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, int n) -> ()
void torch_launch_add2(StableIValue* stack, uint64_t, uint64_t) {
  const Owned c(stack[0]), a(stack[1]), b(stack[2]);
  const auto n = boxed::to<int64_t>(stack[3]);
  const Argument c_is = describe("c", c.tensor);
  const Argument a_is = describe("a", a.tensor), b_is = describe("b", b.tensor);
  const Add2Dtype dtype = checks::check_launch(c_is, a_is, b_is, n);
  std::optional<torch::stable::Tensor> a_copy, b_copy;
  const char* error = launch(writable_data(c.tensor), dense_data(a.tensor, a_is, a_copy),
                             dense_data(b.tensor, b_is, b_copy), n, dtype, c_is);
  if (error) checks::refuse("torch_launch_add2: ", error);
}

}  // namespace

// The schema is the operator's contract: (a!) says that c is written. An `int` of a schema is an
// int64_t in C++. The overloads named no_autograd are the same kernels for calls that need no
// gradient: add2/ops.py says why.
STABLE_TORCH_LIBRARY(add2, m) {
  m.def("add2(Tensor a, Tensor b) -> Tensor");
  m.def("add2.no_autograd(Tensor a, Tensor b) -> Tensor");
  m.def("torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, int n) -> ()");
  m.def("torch_launch_add2.no_autograd(Tensor(a!) c, Tensor a, Tensor b, int n) -> ()");
}

// One function serves both devices: it asks the tensor. (Autograd, fake tensors and vmap are in
// add2/ops.py.)
STABLE_TORCH_LIBRARY_IMPL(add2, CPU, m) {
  m.impl("add2", &add2);
  m.impl("add2.no_autograd", &add2);
  m.impl("torch_launch_add2", &torch_launch_add2);
  m.impl("torch_launch_add2.no_autograd", &torch_launch_add2);
}

STABLE_TORCH_LIBRARY_IMPL(add2, CUDA, m) {
  m.impl("add2", &add2);
  m.impl("add2.no_autograd", &add2);
  m.impl("torch_launch_add2", &torch_launch_add2);
  m.impl("torch_launch_add2.no_autograd", &torch_launch_add2);
}
