// The launchers: which kernel, how many threads, how many blocks. Figures in the comments come from
// an H200 in bfloat16, with inputs that are not in its L2 cache.
#include "add_rms_norm_kernel.cuh"

#include "add_rms_norm.h"

namespace {

int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// Whether kernels may overlap (see wait_for_previous): only where this library was compiled for
// sm_90 or newer. Older code has no wait in it, also where the driver has compiled it for a new
// GPU.
template <typename Kernel>
bool may_overlap(Kernel kernel) {
  cudaFuncAttributes found;
  return cudaFuncGetAttributes(&found, kernel) == cudaSuccess && found.ptxVersion >= 90;
}

template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), int64_t blocks, dim3 threads, cudaStream_t stream,
                   Arguments... arguments) {
  if (blocks == 0) return nullptr;  // a grid of no blocks is an error
  if (blocks >= int64_t(1) << 31) return "too many rows for one launch";
  static const bool waits = may_overlap(kernel);
  const bool overlap = waits && attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 9;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

bool aligned(const void* a, const void* b, const void* c, const void* d, const void* e) {
  const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return (bits(a) | bits(b) | bits(c) | bits(d) | bits(e)) % 16 == 0;
}

constexpr int kAnyThreads = 512;

// ---- forward

template <typename T>
struct Forward {
  T *y, *s;
  void* rstd;
  const T *a, *b, *weight;
  double eps;
  int64_t rows, width;
  cudaStream_t stream;

  template <int kThreads, int kVectors>
  const char* rows_of() const {
    constexpr int kRows = kThreads < 128 ? 128 / kThreads : 1;  // short rows share a block
    return launch(forward_rows<T, kThreads, kVectors, kRows>, (rows + kRows - 1) / kRows,
                  kThreads * kRows, stream, y, s, static_cast<float*>(rstd), a, b, weight,
                  static_cast<float>(eps), rows, static_cast<int>(width));
  }

  const char* any() const {
    using F = typename Statistics<T>::type;
    return launch(forward_any<T, F, kAnyThreads>, rows, kAnyThreads, stream, y, s,
                  static_cast<F*>(rstd), a, b, weight, static_cast<F>(eps), width);
  }

  // One vector a thread is best up to 512 threads, more threads are not: 64x2, 128x1, 32x4 threads
  // x vectors for 1024 elements take 34.4, 34.1, 35.0 us at 16384 rows; 512x2, 1024x1, 256x4 for
  // 8192 take 259, 259, 261 us there and 35.1, 35.7, 35.0 at 2048 rows.
  const char* choose() const {
    if constexpr (sizeof(T) < 8) {
      const int64_t vectors = width / Vector<T>::kSize;
      if (width % Vector<T>::kSize == 0 && aligned(y, s, a, b, weight)) {
        if (vectors <= 32) return rows_of<32, 1>();
        if (vectors <= 64) return rows_of<64, 1>();
        if (vectors <= 128) return rows_of<128, 1>();
        if (vectors <= 256) return rows_of<256, 1>();
        if (vectors <= 512) return rows_of<512, 1>();
        if (vectors <= 1024) return rows_of<512, 2>();
        if (vectors <= 2048) return rows_of<512, 4>();
        if (vectors <= 4096) return rows_of<1024, 4>();
      }
    }
    return any();
  }
};

// ---- backward

// 512 threads a block, two vectors a thread, one block a multiprocessor: that has the bytes in
// flight that the memory wants, with the fewest partial sums. 8 rows of 64x2 at 1024 elements, 1 of
// 512x2 at 8192; others are 1 to 33% slower. (Wider rows, 512x4, have no registers left for the
// next row, and spill.)
constexpr int kBackwardThreads = 512;

template <typename T>
int threads_per_row(int64_t width) {  // 0: too wide, or no whole vectors
  const int64_t vectors = width / Vector<T>::kSize;
  int threads = 32;
  while (threads < kBackwardThreads && threads * 2 < vectors) threads *= 2;
  return width % Vector<T>::kSize == 0 && vectors <= threads * 4 ? threads : 0;
}

template <typename T>
int64_t partial_rows(int64_t rows, int64_t width) {
  const int threads = threads_per_row<T>(width);
  const int64_t groups = threads == 0 ? 1 : kBackwardThreads / threads;
  const int64_t blocks = (rows + groups - 1) / groups,
                most = attribute_of_device(cudaDevAttrMultiProcessorCount);
  return blocks < most ? blocks : most;
}

template <typename T>
struct Backward {
  T *dx, *dweight;
  void* partial;
  const T *dy, *ds, *s, *weight;
  const void* rstd;
  int64_t rows, width;
  cudaStream_t stream;

  template <int kThreads, int kVectors, bool kAhead = true>
  const char* rows_of(int64_t blocks) const {
    return launch(backward_rows<T, kThreads, kVectors, kBackwardThreads / kThreads, kAhead>, blocks,
                  kBackwardThreads, stream, dx, static_cast<float*>(partial), dy, ds, s, weight,
                  static_cast<const float*>(rstd), rows, static_cast<int>(width));
  }

  const char* main_kernel(int64_t blocks) const {
    if constexpr (sizeof(T) < 8) {
      if (aligned(dx, dy, ds, s, weight)) {  // NULL is aligned
        switch (threads_per_row<T>(width)) {
          case 32:
            return rows_of<32, 2>(blocks);
          case 64:
            return rows_of<64, 2>(blocks);
          case 128:
            return rows_of<128, 2>(blocks);
          case 256:
            return rows_of<256, 2>(blocks);
          case 512:
            return width <= 1024 * Vector<T>::kSize ? rows_of<512, 2>(blocks)
                                                    : rows_of<512, 4, false>(blocks);
        }
      }
    }
    using F = typename Statistics<T>::type;
    return launch(backward_any<T, F, kAnyThreads>, blocks, kAnyThreads, stream, dx,
                  static_cast<F*>(partial), dy, ds, s, weight, static_cast<const F*>(rstd), rows,
                  width);
  }

  const char* run() const {
    using F = typename Statistics<T>::type;
    const int64_t blocks = partial_rows<T>(rows, width);
    if (const char* error = main_kernel(blocks)) return error;
    return launch(add_partial<T, F>, (width + 31) / 32, dim3(32, 32), stream, dweight,
                  static_cast<const F*>(partial), static_cast<int>(blocks), width);
  }
};

}  // namespace

// From a dtype known at run time to a type known at compile time.
#define FOR_DTYPE(dtype, ...)  \
  switch (dtype) {             \
    case RMS_FLOAT32: {        \
      using T = float;         \
      return __VA_ARGS__;      \
    }                          \
    case RMS_FLOAT64: {        \
      using T = double;        \
      return __VA_ARGS__;      \
    }                          \
    case RMS_FLOAT16: {        \
      using T = __half;        \
      return __VA_ARGS__;      \
    }                          \
    case RMS_BFLOAT16: {       \
      using T = __nv_bfloat16; \
      return __VA_ARGS__;      \
    }                          \
  }

extern "C" const char* launch_add_rms_norm(void* y, void* s, void* rstd, const void* a,
                                           const void* b, const void* weight, double eps,
                                           int64_t rows, int64_t width, RmsDtype dtype,
                                           CUstream_st* stream) {
  FOR_DTYPE(dtype, Forward<T>{static_cast<T*>(y), static_cast<T*>(s), rstd,
                              static_cast<const T*>(a), static_cast<const T*>(b),
                              static_cast<const T*>(weight), eps, rows, width, stream}
                       .choose());
  return "unknown dtype";
}

extern "C" const char* launch_add_rms_norm_backward(void* dx, void* dweight, void* partial,
                                                    const void* dy, const void* ds, const void* s,
                                                    const void* weight, const void* rstd,
                                                    int64_t rows, int64_t width, RmsDtype dtype,
                                                    CUstream_st* stream) {
  FOR_DTYPE(dtype, Backward<T>{static_cast<T*>(dx), static_cast<T*>(dweight), partial,
                               static_cast<const T*>(dy), static_cast<const T*>(ds),
                               static_cast<const T*>(s), static_cast<const T*>(weight), rstd, rows,
                               width, stream}
                       .run());
  return "unknown dtype";
}

extern "C" int64_t rms_partial_rows(int64_t rows, int64_t width, RmsDtype dtype) {
  FOR_DTYPE(dtype, partial_rows<T>(rows, width));
  return 0;
}
