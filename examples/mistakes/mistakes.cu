// c = a + b, twice. careless() leaves out everything that an operator must check; careful() is the
// same operator with a line against nearly every mistake, marked `// prevents: NAME`.
// nvcc compiles all of it, with -DUSE_CUDA for torch's headers; without nvcc, g++ takes the CPU
// half.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <climits>
#include <stdexcept>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

#ifdef __CUDACC__
__global__ void add_kernel(float* c, const float* a, const float* b, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
#endif

// Python sees a RuntimeError. STD_TORCH_CHECK of torch/headeronly does it, too, but some compilers
// link the C++ runtime statically, and there it crashes as it prints its line number.
void check(bool right, const char* message) {
  if (!right) throw std::runtime_error(message);
}

void add_loop(float* c, const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

Tensor careless(const Tensor& a, const Tensor& b, int64_t threads) {
  Tensor c = torch::stable::empty_like(a);
  auto* out = static_cast<float*>(c.data_ptr());
  auto *x = static_cast<float*>(a.data_ptr()), *y = static_cast<float*>(b.data_ptr());
  int n = a.numel();
#ifdef __CUDACC__
  if (a.is_cuda()) {
    add_kernel<<<(n + threads - 1) / threads, threads>>>(out, x, y, n);
    return c;
  }
#endif
  add_loop(out, x, y, n);
  return c;
}

Tensor careful(const Tensor& a, const Tensor& b, int64_t threads) {
  check(a.sizes().equals(b.sizes()), "a and b differ in shape");  // prevents: short
  check(a.scalar_type() == ScalarType::Float, "a must be float32");
  check(b.scalar_type() == ScalarType::Float, "b must be float32");  // prevents: dtype
  check(a.device() == b.device(), "a and b differ in device");       // prevents: cpu
  check(threads > 0 && threads <= INT_MAX, "threads must be a positive int");
  const Tensor x = torch::stable::contiguous(a);
  const Tensor y = torch::stable::contiguous(b);  // prevents: transposed
  Tensor c = torch::stable::empty_like(x);
  auto* out = c.mutable_data_ptr<float>();
  const int64_t n = a.numel();  // prevents: length
  if (n == 0) return c;         // a grid of no blocks cannot be launched
#ifdef __CUDACC__
  if (a.is_cuda()) {
    const int32_t gpu = a.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(gpu);  // prevents: gpu
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(gpu, &stream));  // prevents: stream
    const int64_t blocks = (n + threads - 1) / threads;
    check(blocks <= INT_MAX, "a launch cannot have so many blocks");
    add_kernel<<<blocks, threads, 0, cudaStream_t(stream)>>>(out, x.const_data_ptr<float>(),
                                                             y.const_data_ptr<float>(), n);
    check(cudaGetLastError() == cudaSuccess, "the launch failed");  // prevents: launch
    return c;
  }
#endif
  add_loop(out, x.const_data_ptr<float>(), y.const_data_ptr<float>(), n);
  return c;
}

// c[i] = a[i] + a[n-1-i]: each element is read twice, so c must not be a. (Both functions are for
// contiguous float32 tensors of one length on the CPU.)
void careless_mirror(const Tensor& c, const Tensor& a) {
  auto* out = c.mutable_data_ptr<float>();
  const auto* x = a.const_data_ptr<float>();
  for (int64_t i = 0; i < a.numel(); ++i) out[i] = x[i] + x[a.numel() - 1 - i];
}

void careful_mirror(const Tensor& c, const Tensor& a) {
  const auto *out = c.const_data_ptr<float>(), *x = a.const_data_ptr<float>();
  const bool is_apart = out + c.numel() <= x || x + a.numel() <= out;
  check(is_apart, "c shares memory with a");  // prevents: overlap
  careless_mirror(c, a);
}

STABLE_TORCH_LIBRARY(mistakes, m) {
  m.def("careless(Tensor a, Tensor b, int threads=256) -> Tensor");
  m.def("careful(Tensor a, Tensor b, int threads=256) -> Tensor");
  m.def("careless_mirror(Tensor(a!) c, Tensor a) -> ()");
  m.def("careful_mirror(Tensor(a!) c, Tensor a) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mistakes, CPU, m) {
  m.impl("careless", TORCH_BOX(&careless));
  m.impl("careful", TORCH_BOX(&careful));
  m.impl("careless_mirror", TORCH_BOX(&careless_mirror));
  m.impl("careful_mirror", TORCH_BOX(&careful_mirror));
}

#ifdef __CUDACC__
STABLE_TORCH_LIBRARY_IMPL(mistakes, CUDA, m) {
  m.impl("careless", TORCH_BOX(&careless));
  m.impl("careful", TORCH_BOX(&careful));
}
#endif
