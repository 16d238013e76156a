// Names of the page's table that need nvcc: atomics and packed accessors. A test compiles this file
// for torch 2.10 where there is an nvcc.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/TensorAccessor.h>
#include <torch/headeronly/macros/Macros.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#if __has_include(<torch/headeronly/cuda/Atomic.h>)
#include <torch/headeronly/cuda/Atomic.h>  // in the headers of 2.14 and later, for every target
#endif

using torch::stable::Tensor;

// Without that header. CUDA has atomicAdd of float and double, and of 16 bits by its own types.
template <typename T>
__device__ void add_at(T* address, T value) {
  if constexpr (std::is_same_v<T, torch::headeronly::Half>) {
    atomicAdd(reinterpret_cast<__half*>(address), static_cast<__half>(value));  // sm_70
  } else if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) {
    atomicAdd(reinterpret_cast<__nv_bfloat16*>(address), static_cast<__nv_bfloat16>(value));  // 80
  } else {
    atomicAdd(address, value);
  }
}

// The sizes and strides go to the kernel by value. int32_t as the last argument: 32-bit indices.
template <typename T, int N>
using Packed = torch::headeronly::HeaderOnlyGenericPackedTensorAccessor<
    T, N, torch::headeronly::RestrictPtrTraits, int32_t>;

template <typename T>
__global__ void add_columns(Packed<T, 1> sums, Packed<T, 2> x) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= x.size(0)) return;
  CUDA_KERNEL_ASSERT(x.size(1) <= sums.size(0));
  for (int j = 0; j < x.size(1); ++j) {
#if __has_include(<torch/headeronly/cuda/Atomic.h>)
    gpuAtomicAdd(&sums[j], x[i][j]);
#else
    add_at(&sums[j], x[i][j]);
#endif
  }
}

template <typename T>
void launch(const Tensor& sums, const Tensor& x) {
  const Packed<T, 1> to(sums.mutable_data_ptr<T>(), sums.sizes().data(), sums.strides().data());
  const Packed<T, 2> from(x.mutable_data_ptr<T>(), x.sizes().data(), x.strides().data());
  add_columns<T><<<(x.size(0) + 255) / 256, 256>>>(to, from);
}
template void launch<float>(const Tensor&, const Tensor&);
template void launch<double>(const Tensor&, const Tensor&);
template void launch<torch::headeronly::Half>(const Tensor&, const Tensor&);
template void launch<torch::headeronly::BFloat16>(const Tensor&, const Tensor&);
template __device__ void add_at(torch::headeronly::Half*, torch::headeronly::Half);
template __device__ void add_at(torch::headeronly::BFloat16*, torch::headeronly::BFloat16);
