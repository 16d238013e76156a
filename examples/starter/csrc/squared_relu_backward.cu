// The backward kernel. A file of its own, so that both are compiled at the same time.
#include "squared_relu.h"

template <typename T, typename Wide>  // T in memory, computes in Wide
__global__ void squared_relu_backward_kernel(T* dx, const T* grad, const T* x, Wide scale,
                                             int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) dx[i] = T(formula_backward(Wide(grad[i]), Wide(x[i]), scale));
}

const char* launch_squared_relu_backward(void* dx, const void* grad, const void* x, double scale,
                                         int64_t n, ScalarType dtype, void* stream) {
  if (n == 0) return nullptr;
  const unsigned blocks = (n + 255) / 256;
  with_types(dtype, [&](auto t, auto wide) {
    using T = decltype(t);
    using Wide = decltype(wide);
    squared_relu_backward_kernel<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<T*>(dx), static_cast<const T*>(grad), static_cast<const T*>(x), Wide(scale), n);
  });
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
