// The operator, as torch's dispatcher calls it: checks tensors, finds the current stream, launches.
//
// It includes only torch's ABI-stable headers: they compile in one second instead of thirty, and
// the library runs on every torch from 2.10 on, with or without CUDA. The build defines
// TORCH_TARGET_VERSION to say so, and ADD2_WITH_CUDA where add2_kernel.cu is part of the library.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "add2.h"

using torch::stable::Tensor;

// Weak: a torch without CUDA does not define it. (torch declares it only under USE_CUDA.)
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace {

std::string text(const std::string& word) { return word; }
std::string text(int64_t number) { return std::to_string(number); }

// Python sees a RuntimeError with this text. (STD_TORCH_CHECK prints a line number through
// iostreams, which crashes where the compiler is set up to link the C++ runtime statically.)
template <typename... Words>
[[noreturn]] void refuse(const Words&... words) {
  throw std::runtime_error(("add2: " + ... + text(words)));
}

struct Argument {  // a tensor, and what every check asks of it
  const char* name;
  const Tensor& tensor;
  int32_t dtype, device_type, device_index;

  Argument(const char* name, const Tensor& tensor) : name(name), tensor(tensor) {
    if (!tensor.defined()) refuse(name, " is None, expected a tensor");
    int32_t layout;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(tensor.get(), &layout));
    if (layout != aoti_torch_layout_strided() || !(tensor.is_cpu() || tensor.is_cuda())) {
      refuse(name, " is sparse, or not on a CPU or a CUDA device");
    }
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &device_index));
  }
};

std::string device(const Argument& x) {
  return x.tensor.is_cpu() ? "cpu" : "cuda:" + text(x.device_index);
}
std::string shape(const Argument& x) {
  std::string shape;
  for (int64_t size : x.tensor.sizes()) shape += (shape.empty() ? "" : ", ") + text(size);
  return "[" + shape + "]";
}

constexpr const char* kDtypes[] = {"float32", "float64", "float16", "bfloat16", "of another dtype"};

int dtype(const Argument& x) {  // an Add2Dtype, or 4 for another
  const int32_t known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
                           aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16()};
  return std::find(known, known + 4, x.dtype) - known;
}

void check_alike(const Argument& x, const Argument& y) {
  if (x.device_type != y.device_type || x.device_index != y.device_index) {
    refuse(x.name, " is on ", device(x), ", expected ", device(y));
  }
  if (x.dtype != y.dtype)
    refuse(x.name, " is ", kDtypes[dtype(x)], ", expected ", kDtypes[dtype(y)]);
}

// c may be the very memory of an input: element i is read before it is written. Any other overlap
// would make the result depend on the order of the threads. An input counts from its first element
// to its last, whatever its strides.
void check_overlap(const Argument& c, const Argument& x) {
  const auto c_begin = reinterpret_cast<uintptr_t>(c.tensor.const_data_ptr());
  const auto x_begin = reinterpret_cast<uintptr_t>(x.tensor.const_data_ptr());
  if (x_begin == c_begin && x.tensor.is_contiguous()) return;
  const auto sizes = x.tensor.sizes(), strides = x.tensor.strides();
  int64_t reach = 1;
  for (size_t i = 0; i < sizes.size(); ++i) reach += (sizes[i] - 1) * strides[i];
  const int64_t bytes = c.tensor.element_size();
  if (x_begin < c_begin + c.tensor.numel() * bytes && c_begin < x_begin + reach * bytes) {
    refuse("c shares memory with ", x.name, ", but is not ", x.name, " itself; pass a clone()");
  }
}

// c[0:n] = a[0:n] + b[0:n], where all is known to fit. Returns nullptr or an error message.
const char* launch(const Tensor& c, const Tensor& a, const Tensor& b, int64_t n, int dtype_number) {
  if (dtype_number > ADD2_BFLOAT16) return "the dtype is not float32, float64, float16 or bfloat16";
  if (n == 0) return nullptr;
  const auto dtype = static_cast<Add2Dtype>(dtype_number);
  const void *x = a.const_data_ptr(), *y = b.const_data_ptr();
  if (!x || !y || !c.const_data_ptr()) return "a tensor has no memory";
  if (!a.is_contiguous() || !b.is_contiguous()) {  // a kernel knows no strides
    return launch(c, torch::stable::contiguous(a), torch::stable::contiguous(b), n, dtype_number);
  }
  if (c.is_cpu()) return launch_add2_cpu(c.mutable_data_ptr(), x, y, n, dtype);
#ifdef ADD2_WITH_CUDA
  // A kernel runs on the current device. Asking which it is costs less than a guard.
  const int32_t device = c.get_device_index();
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (torch::stable::accelerator::getCurrentDeviceIndex() != device) guard.emplace(device);
  // The caller's stream, as in `with torch.cuda.stream(s):`. torch's own kernels are queued there.
  void* stream;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return launch_add2_cuda(c.mutable_data_ptr(), x, y, n, dtype, static_cast<CUstream_st*>(stream));
#else
  return "this library has no CUDA code; build it where nvcc is, or move the tensors to the CPU";
#endif
}

// add2(Tensor a, Tensor b) -> Tensor
Tensor add2(const Tensor& a, const Tensor& b) {
  const Argument a_is("a", a), b_is("b", b);
  check_alike(b_is, a_is);
  const auto sizes = a.sizes();
  if (!sizes.equals(b.sizes())) refuse("b has shape ", shape(b_is), ", expected ", shape(a_is));
  std::vector<int64_t> strides(sizes.size(), 1);  // contiguous, whatever a is
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * (sizes[i] ? sizes[i] : 1);
  AtenTensorHandle c = nullptr;  // torch::stable::empty_like takes 0.6 us longer
  if (aoti_torch_empty_strided(a.dim(), sizes.data(), strides.data(), a_is.dtype, a_is.device_type,
                               a_is.device_index, &c) != TORCH_SUCCESS) {
    refuse("no memory for a result of shape ", shape(a_is), "; torch's reason is on stderr");
  }
  const Tensor result(c);
  if (const char* error = launch(result, a, b, a.numel(), dtype(a_is))) refuse(error);
  return result;
}

// torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, SymInt n) -> ()
void torch_launch_add2(const Tensor& c, const Tensor& a, const Tensor& b, int64_t n) {
  const Argument c_is("c", c), a_is("a", a), b_is("b", b);
  check_alike(a_is, c_is);
  check_alike(b_is, c_is);
  for (const Argument* x : {&c_is, &a_is, &b_is}) {
    const int64_t numel = x->tensor.numel();
    if (n < 0 || n > numel) refuse("n is ", n, ", expected 0 to ", numel, ", all of ", x->name);
  }
  if (!c.is_contiguous()) refuse("c of shape ", shape(c_is), " is not contiguous");
  if (n > 0) check_overlap(c_is, a_is), check_overlap(c_is, b_is);
  if (const char* error = launch(c, a, b, n, dtype(c_is))) refuse(error);
}

}  // namespace

// The schema is the contract: (a!) says that c is written, and a SymInt may be a symbol for
// torch.compile. One function serves both devices. add2/ops.py adds autograd, fake tensors, vmap.
STABLE_TORCH_LIBRARY(add2, m) {
  m.def("add2(Tensor a, Tensor b) -> Tensor");
  m.def("torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, SymInt n) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(add2, CPU, m) {
  m.impl("add2", TORCH_BOX(&add2));
  m.impl("torch_launch_add2", TORCH_BOX(&torch_launch_add2));
}
STABLE_TORCH_LIBRARY_IMPL(add2, CUDA, m) {
  m.impl("add2", TORCH_BOX(&add2));
  m.impl("torch_launch_add2", TORCH_BOX(&torch_launch_add2));
}
