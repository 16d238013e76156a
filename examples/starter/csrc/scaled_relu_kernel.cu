// The CUDA kernel, one thread per element, and its launcher. No tensors here, only pointers.
#include <torch/headeronly/core/ScalarType.h>

using torch::headeronly::BFloat16, torch::headeronly::Half, torch::headeronly::ScalarType;

template <typename T, typename Wide>  // computes in Wide, rounds to T once
__global__ void scaled_relu_kernel(T* y, const T* a, const T* b, Wide scale, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) {
    const Wide x = scale * (Wide(a[i]) + Wide(b[i]));
    y[i] = T(x < 0 ? Wide(0) : x);  // not max(x, 0), which would hide a NaN
  }
}

template <typename T, typename Wide>
const char* launch(void* y, const void* a, const void* b, double scale, int64_t n, void* stream) {
  if (n == 0) return nullptr;  // a grid of no blocks is an error
  const unsigned blocks = (n + 255) / 256;
  scaled_relu_kernel<T, Wide><<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<T*>(y), static_cast<const T*>(a), static_cast<const T*>(b), Wide(scale), n);
  const cudaError_t error = cudaGetLastError();  // a failed launch is reported only here
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char* launch_scaled_relu(void* y, const void* a, const void* b, double scale, int64_t n,
                               ScalarType dtype, void* stream) {
  if (dtype == ScalarType::Float) return launch<float, float>(y, a, b, scale, n, stream);
  if (dtype == ScalarType::Double) return launch<double, double>(y, a, b, scale, n, stream);
  if (dtype == ScalarType::Half) return launch<Half, float>(y, a, b, scale, n, stream);
  if (dtype == ScalarType::BFloat16) return launch<BFloat16, float>(y, a, b, scale, n, stream);
  return "no kernel for this dtype";
}
