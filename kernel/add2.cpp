// The operator, as torch's dispatcher calls it: checks tensors, finds the current stream, launches.
// It includes only torch's ABI-stable headers: they compile in one second instead of 24, and
// the library runs on every torch from 2.10 on, with or without CUDA. The build defines
// TORCH_TARGET_VERSION to say so, and ADD2_WITH_CUDA where add2_kernel.cu is part of the library.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "add2.h"

using torch::stable::Tensor;

// Weak: a torch without CUDA does not define it. (torch declares it only under USE_CUDA.)
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);
extern "C" int cudaGetDevice(int* device);  // the CUDA runtime's, declared here to need no header

namespace {

// Python sees a RuntimeError with this text. (STD_TORCH_CHECK prints a line number through
// iostreams, which crashes where the compiler is set up to link the C++ runtime statically.)
template <typename... Words>
[[noreturn]] void refuse(const Words&... words) {
  throw std::runtime_error(("add2: " + ... + std::string(words)));
}

const char* const kDtypes[] = {"float32", "float64", "float16", "bfloat16"};  // by Add2Dtype

Add2Dtype known_dtype(const char* name, int32_t torch_dtype) {
  if (torch_dtype == aoti_torch_dtype_float32()) return ADD2_FLOAT32;
  if (torch_dtype == aoti_torch_dtype_float64()) return ADD2_FLOAT64;
  if (torch_dtype == aoti_torch_dtype_float16()) return ADD2_FLOAT16;
  if (torch_dtype == aoti_torch_dtype_bfloat16()) return ADD2_BFLOAT16;
  refuse("the dtype is not float32, float64, float16, bfloat16 (argument ", name, ")");
}

struct Argument {  // a tensor, and its properties that the checks ask for
  const char* name;
  const Tensor& tensor;
  int64_t numel;
  int32_t torch_dtype, device_type, device_index;
  Add2Dtype dtype;

  Argument(const char* name, const Tensor& tensor) : name(name), tensor(tensor) {
    if (!tensor.defined()) refuse(name, " is None, expected a tensor");
    int32_t layout;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(tensor.get(), &layout));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &torch_dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &device_index));
    if (layout != aoti_torch_layout_strided() || !(tensor.is_cpu() || tensor.is_cuda())) {
      refuse(name, " is sparse, or not on a CPU or a CUDA device");
    }
    numel = tensor.numel();
    dtype = known_dtype(name, torch_dtype);
    // x.untyped_storage().resize_(0) frees memory that x, or a view of it, still names.
    int64_t bytes = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &bytes));
    const int64_t end = (tensor.storage_offset() + reach()) * tensor.element_size();
    if (numel > 0 && end > bytes) refuse("a tensor has no memory");
  }

  int64_t reach() const {  // elements from the first one to the last one in memory
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    int64_t reach = 1;
    for (size_t i = 0; i < sizes.size(); ++i) reach += (sizes[i] - 1) * strides[i];
    return reach;
  }
};

std::string device(const Argument& x) {
  return x.tensor.is_cpu() ? "cpu" : "cuda:" + std::to_string(x.device_index);
}
std::string shape(const Argument& x) {
  std::string shape;
  for (int64_t size : x.tensor.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return "[" + shape + "]";
}

void check_alike(const Argument& x, const Argument& y) {
  const bool is_same_device = x.device_type == y.device_type && x.device_index == y.device_index;
  if (!is_same_device) refuse(x.name, " is on ", device(x), ", expected ", device(y));
  if (x.dtype != y.dtype) refuse(x.name, " is ", kDtypes[x.dtype], ", expected ", kDtypes[y.dtype]);
}

// c may be the very memory of an input: element i is read before it is written. Any other overlap
// would make the result depend on the order of the threads. An input counts from its first element
// to its last, whatever its strides.
void check_overlap(const Argument& c, const Argument& x) {
  const auto c_begin = reinterpret_cast<uintptr_t>(c.tensor.const_data_ptr());
  const auto x_begin = reinterpret_cast<uintptr_t>(x.tensor.const_data_ptr());
  if (x_begin == c_begin && x.tensor.is_contiguous()) return;
  const int64_t bytes = c.tensor.element_size();
  if (x_begin < c_begin + c.numel * bytes && c_begin < x_begin + x.reach() * bytes) {
    refuse("c shares memory with ", x.name, ", but is not ", x.name, " itself; pass a clone()");
  }
}

// torch::stable::empty_like(x). For contiguous tensors, the usual ones, without the dispatcher,
// which takes 0.6 us longer.
Tensor empty_like(const Argument& x) {
  if (!x.tensor.is_contiguous()) return torch::stable::empty_like(x.tensor);
  const auto sizes = x.tensor.sizes(), strides = x.tensor.strides();
  AtenTensorHandle made = nullptr;
  aoti_torch_empty_strided(sizes.size(), sizes.data(), strides.data(), x.torch_dtype, x.device_type,
                           x.device_index, &made);
  if (!made) refuse("no memory for shape ", shape(x), "; torch's reason is on stderr");
  return Tensor(made);
}

// x, or a copy of it that lies in memory as c does. The strides of dimensions of size 1, and of
// tensors without elements, are no difference.
Tensor in_layout_of(const Tensor& c, const Tensor& x) {
  bool is_copy_needed = false;
  for (int64_t i = 0; i < c.dim(); ++i) {
    if (c.size(i) != 1 && c.stride(i) != x.stride(i)) is_copy_needed = true;
  }
  if (!is_copy_needed || c.numel() == 0) return x;
  Tensor copy = torch::stable::empty_like(c);
  return torch::stable::copy_(copy, x);
}

// c[0:n] = a[0:n] + b[0:n], as they lie in memory. Returns nullptr or an error message.
const char* launch(const Tensor& c, const Tensor& a, const Tensor& b, int64_t n, Add2Dtype dtype) {
  if (n == 0) return nullptr;
  void* out = c.mutable_data_ptr();
  const void *x = a.const_data_ptr(), *y = b.const_data_ptr();
  if (c.is_cpu()) return launch_add2_cpu(out, x, y, n, dtype);
#ifdef ADD2_WITH_CUDA
  // A kernel runs on the current device. Ask CUDA which one that is: torch may name one that it has
  // noted and not set yet. Asking costs less than a guard on every call.
  const int32_t device = c.get_device_index();
  int current = -1;
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (cudaGetDevice(&current) != 0 || current != device) guard.emplace(device);
  // The caller's stream, as in `with torch.cuda.stream(s):`. torch's own kernels are queued there.
  void* current_stream;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &current_stream));
  auto* stream = static_cast<CUstream_st*>(current_stream);
  return launch_add2_cuda(out, x, y, n, dtype, stream);
#else
  return "this library has no CUDA code; build it where nvcc is, or move the tensors to the CPU";
#endif
}

Tensor add2(const Tensor& a, const Tensor& b) {
  const Argument a_is("a", a), b_is("b", b);
  check_alike(b_is, a_is);
  const bool is_same_shape = a.sizes().equals(b.sizes());
  if (!is_same_shape) refuse("b has shape ", shape(b_is), ", expected ", shape(a_is));
  const Tensor c = empty_like(a_is);
  const char* error = launch(c, in_layout_of(c, a), in_layout_of(c, b), a_is.numel, a_is.dtype);
  if (error) refuse(error);
  return c;
}

void torch_launch_add2(const Tensor& c, const Tensor& a, const Tensor& b, int64_t n) {
  const Argument c_is("c", c), a_is("a", a), b_is("b", b);
  check_alike(a_is, c_is);
  check_alike(b_is, c_is);
  for (const Argument* x : {&c_is, &a_is, &b_is}) {
    const auto expected = [&] { return ", expected 0 to " + std::to_string(x->numel); };
    if (n < 0 || n > x->numel) refuse("n is ", std::to_string(n), expected(), ", all of ", x->name);
  }
  if (!c.is_contiguous()) refuse("c of shape ", shape(c_is), " is not contiguous");
  if (n == 0) return;
  check_overlap(c_is, a_is);
  check_overlap(c_is, b_is);
  const Tensor x = a.is_contiguous() ? a : torch::stable::contiguous(a);
  const Tensor y = b.is_contiguous() ? b : torch::stable::contiguous(b);
  if (const char* error = launch(c, x, y, n, c_is.dtype)) refuse(error);
}

std::string version() { return ADD2_VERSION; }

bool has_cuda() {  // whether add2_kernel.cu is part of this library
#ifdef ADD2_WITH_CUDA
  return true;
#else
  return false;
#endif
}

}  // namespace

// The schema is the contract: (a!) says that c is written, and a SymInt may be a symbol for
// torch.compile. One function serves both devices. add2/gradient.py adds autograd, shapes.py fake
// kernels, ops.py the rest. Only add2/fast.py calls the overloads `plain`, and says what for.
STABLE_TORCH_LIBRARY(add2, m) {
  m.def("add2(Tensor a, Tensor b) -> Tensor");
  m.def("add2.plain(Tensor a, Tensor b) -> Tensor");
  m.def("torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, SymInt n) -> ()");
  m.def("torch_launch_add2.plain(Tensor(a!) c, Tensor a, Tensor b, SymInt n) -> ()");
  m.def("version() -> str");
  m.def("has_cuda() -> bool");
}
STABLE_TORCH_LIBRARY_IMPL(add2, CompositeExplicitAutograd, m) {
  m.impl("version", TORCH_BOX(&version));
  m.impl("has_cuda", TORCH_BOX(&has_cuda));
}
STABLE_TORCH_LIBRARY_IMPL(add2, CPU, m) {
  m.impl("add2", TORCH_BOX(&add2));
  m.impl("add2.plain", TORCH_BOX(&add2));
  m.impl("torch_launch_add2", TORCH_BOX(&torch_launch_add2));
  m.impl("torch_launch_add2.plain", TORCH_BOX(&torch_launch_add2));
}
STABLE_TORCH_LIBRARY_IMPL(add2, CUDA, m) {
  m.impl("add2", TORCH_BOX(&add2));
  m.impl("add2.plain", TORCH_BOX(&add2));
  m.impl("torch_launch_add2", TORCH_BOX(&torch_launch_add2));
  m.impl("torch_launch_add2.plain", TORCH_BOX(&torch_launch_add2));
}
