// The kernel and its launch.
#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include <stdexcept>

#include "blend.h"

// torch declares it only under USE_CUDA. Weak: a torch without CUDA does not define it.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

template <typename T>
__global__ void kernel(T* y, const T* a, const T* b, const bool* mask, double alpha, double beta,
                       int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = mask && !mask[i] ? a[i] : mix_one(a[i], b[i], alpha, beta);
}

template <typename T>
void launch(const Tensor& y, const Tensor& a, const Tensor& b, const bool* mask, double alpha,
            double beta, cudaStream_t stream) {
  const int64_t n = y.numel();
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(y.mutable_data_ptr<T>(), a.const_data_ptr<T>(),
                                              b.const_data_ptr<T>(), mask, alpha, beta, n);
}

void mix_cuda(const Tensor& y, const Tensor& a, const Tensor& b, const bool* mask, double alpha,
              double beta) {
  if (y.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(y.get_device_index());
  void* stream;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(y.get_device_index(), &stream));
  THO_DISPATCH_V2(y.scalar_type(), "blend", AT_WRAP([&] {
                    launch<scalar_t>(y, a, b, mask, alpha, beta, static_cast<cudaStream_t>(stream));
                  }),
                  AT_EXPAND(AT_FLOATING_TYPES), torch::headeronly::ScalarType::Half);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
