// gated_linear(Tensor x, Tensor w) -> Tensor on torch's ABI-stable headers: checks, allocation, and
// the kernel where it runs (bfloat16 on Hopper); anywhere else torch's own operators.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

using namespace torch::headeronly;  // ScalarType, IntHeaderOnlyArrayRef
using torch::stable::Tensor;
namespace values = torch::stable::detail;

#ifdef WITH_CUDA
struct CUstream_st;  // a cudaStream_t points to it
bool gated_linear_runs_here();
const char* launch_gated_linear(void* y, const void* x, const void* w, int64_t rows, int64_t n,
                                int64_t k, CUstream_st* stream);
// torch declares it where USE_CUDA is defined.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace {

// Python sees a RuntimeError with the text. (STD_TORCH_CHECK would put this file's path and line
// before it, and crashes where the C++ runtime is linked statically, as on some machines.)
[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error("gated_linear: " + text);
}

std::string text(const Tensor& x) {
  std::string all;
  for (const int64_t size : x.sizes()) all += (all.empty() ? "" : ", ") + std::to_string(size);
  return toString(x.scalar_type()) + ("[" + all + "]");
}

void check(const Tensor& x, const Tensor& w) {
  const ScalarType type = x.scalar_type();
  if (type != ScalarType::Float && type != ScalarType::Double && type != ScalarType::Half &&
      type != ScalarType::BFloat16) {
    refuse("x is " + text(x) + ", expected float32, float64, float16 or bfloat16");
  }
  const bool fits = x.dim() > 0 && w.dim() == 2 && w.size(1) == x.size(-1) && w.size(0) % 16 == 0;
  if (!fits || w.scalar_type() != type) {
    refuse("x is " + text(x) + " and w " + text(w) +
           ", expected [..., K] and [2 H, K] of one dtype, H a multiple of 8: use interleave()");
  }
  if (w.device() != x.device()) refuse("x and w are on different devices");
}

#ifdef WITH_CUDA
// Contiguous, and at an address that TMA accepts.
Tensor tidy(const Tensor& x) {
  const Tensor y = torch::stable::contiguous(x);
  return reinterpret_cast<uintptr_t>(y.const_data_ptr()) % 16 == 0 ? y : torch::stable::clone(y);
}

// Returns false where the kernel does not run.
bool run_kernel(Tensor& y, const Tensor& x, const Tensor& w) {
  const int64_t n = w.size(0), k = w.size(1), limit = std::numeric_limits<int>::max();
  if (!x.is_cuda() || x.scalar_type() != ScalarType::BFloat16 || y.numel() == 0) return false;
  const int64_t rows = x.numel() / (k > 0 ? k : 1);
  if (k == 0 || k % 8 != 0 || rows > limit || n > limit || k > limit) return false;
  // A kernel runs on the current device, and in the order of the stream that it is given.
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  if (!gated_linear_runs_here()) return false;
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  const Tensor x_tidy = tidy(x), w_tidy = tidy(w);
  const char* error =
      launch_gated_linear(y.mutable_data_ptr(), x_tidy.const_data_ptr(), w_tidy.const_data_ptr(),
                          rows, n, k, static_cast<CUstream_st*>(stream));
  if (error) refuse(error);
  return true;
}
#else
bool run_kernel(Tensor&, const Tensor&, const Tensor&) { return false; }
#endif

Tensor gated_linear(const Tensor& x, const Tensor& w) {
  check(x, w);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.size(0) / 2;
  Tensor y = torch::stable::new_empty(x, shape);
  if (run_kernel(y, x, w)) return y;
  Tensor both = torch::stable::matmul(x, torch::stable::transpose(w, 0, 1));
  shape.back() = w.size(0) / 16;
  shape.insert(shape.end(), {2, 8});
  both = torch::stable::reshape(both, shape);
  const int64_t pair = x.dim();  // this dimension holds gate and up
  StableIValue gate[] = {values::from(torch::stable::select(both, pair, 0))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::silu", "", gate, TORCH_ABI_VERSION));
  StableIValue product[] = {gate[0], values::from(torch::stable::select(both, pair, 1))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mul", "Tensor", product, TORCH_ABI_VERSION));
  return torch::stable::reshape(values::to<Tensor>(product[0]), y.sizes());
}

}  // namespace

STABLE_TORCH_LIBRARY(gated_linear, m) { m.def("gated_linear(Tensor x, Tensor w) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(gated_linear, CPU, m) {
  m.impl("gated_linear", TORCH_BOX(&gated_linear));
}

#ifdef WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(gated_linear, CUDA, m) {
  m.impl("gated_linear", TORCH_BOX(&gated_linear));
}
#endif
