// The kernel and its launch.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "blend.h"

template <typename T>
__global__ void kernel(T* y, const T* a, const T* b, const bool* mask, double alpha, double beta,
                       int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = mask && !mask[i] ? a[i] : mix_one(a[i], b[i], alpha, beta);
}

template <typename T>
void launch(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const bool* mask,
            double alpha, double beta, cudaStream_t stream) {
  const int64_t n = y.numel();
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(y.mutable_data_ptr<T>(), a.const_data_ptr<T>(),
                                              b.const_data_ptr<T>(), mask, alpha, beta, n);
}

void mix_cuda(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const bool* mask,
              double alpha, double beta) {
  if (y.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(y.device());
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(
      y.scalar_type(), "blend", [&] { launch<scalar_t>(y, a, b, mask, alpha, beta, stream); });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
