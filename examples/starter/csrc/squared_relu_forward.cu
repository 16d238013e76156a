// The forward kernel, one thread per element, and its launcher. No tensors here, only pointers.
#include "squared_relu.h"

template <typename T, typename Wide>  // T in memory, computes in Wide
__global__ void squared_relu_kernel(T* y, const T* x, Wide scale, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = T(formula(Wide(x[i]), scale));
}

const char* launch_squared_relu(void* y, const void* x, double scale, int64_t n, ScalarType dtype,
                                void* stream) {
  if (n == 0) return nullptr;  // a grid without blocks is an error
  const unsigned blocks = (n + 255) / 256;
  with_types(dtype, [&](auto t, auto wide) {
    using T = decltype(t);
    using Wide = decltype(wide);
    squared_relu_kernel<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<T*>(y), static_cast<const T*>(x), Wide(scale), n);
  });
  const cudaError_t error = cudaGetLastError();  // a failed launch is reported only here
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
