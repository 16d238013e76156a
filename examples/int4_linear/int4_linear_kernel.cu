// The launcher: asks plan.h for a kernel and starts it; the kernels for bfloat16; and dequantize.
#include "starts.cuh"

namespace four_bit {

extern template const char* start<__half>(const Int4Call&, const Plan&, cudaStream_t);

// One thread for 16 columns of 2 rows. It reads a word from each of four lanes, so that it can
// write 16 bytes at a time.
template <typename T>
__global__ void dequantize(const Int4Call p) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= static_cast<int64_t>(p.n) * p.k / 32) return;
  const int chunk = static_cast<int>(i / 128 % (p.k / 64)), step = i % 4;
  const int row = static_cast<int>(i / 128 / (p.k / 64)) * 64 + i % 128 / 4 * 2;
  const int column = chunk * 64 + step * 16;
  uint32_t words[4];
  for (int t = 0; t < 4; ++t)
    words[t] = static_cast<const Words*>(p.packed)[i / 4 * 4 + t].at[step];
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const int64_t at = static_cast<int64_t>(chunk / 2) * p.n + row + odd;
    const uint32_t scale = static_cast<const uint16_t*>(p.scale)[at];
    const Affine<T> affine(scale << 16 | scale, static_cast<const uint8_t*>(p.zero)[at]);
    for (int half = 0; half < 2; ++half) {
      uint32_t out[4];
      for (int t = 0; t < 4; ++t) out[t] = affine.weights(two_codes<T>(words[t], half * 2 + odd));
      T* to = static_cast<T*>(p.y) + static_cast<int64_t>(row + odd) * p.k + column + half * 8;
      *reinterpret_cast<uint4*>(to) = {out[0], out[1], out[2], out[3]};
    }
  }
}

// The parts of a norm by themselves, for more rows: y is the product, a thread has a strip of it.
__global__ void add_residual(const Int4Call p) {
  const int64_t strip = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (strip >= static_cast<int64_t>(p.batch) * (p.n / kStrip)) return;
  const int column = static_cast<int>(strip % (p.n / kStrip)) * kStrip;
  float squares = 0;
  for (int i = 0; i < kStrip / 2; ++i) {
    const int64_t place = strip * kStrip + 2 * i;
    const auto y = __bfloat1622float2(static_cast<const __nv_bfloat162*>(p.y)[place / 2]);
    squares += add_to_residual(p, place, y, load_addend(p, place, column + 2 * i));
  }
  p.next_squares[strip] = squares;
}

// A block for a row of x.
__global__ void scale_rows(const Int4Call p) {
  const float scale = find_scale(p, blockIdx.x);
  const int64_t start = static_cast<int64_t>(blockIdx.x) * (p.k / 2);
  const auto* x = static_cast<const __nv_bfloat162*>(p.x) + start;
  auto* y = static_cast<__nv_bfloat162*>(p.y) + start;
  for (int i = threadIdx.x; i < p.k / 2; i += blockDim.x) {
    const float2 pair = __bfloat1622float2(x[i]);
    y[i] = __float22bfloat162_rn({pair.x * scale, pair.y * scale});
  }
}

}  // namespace four_bit

using namespace four_bit;

const char* launch_plan(const Int4Call& call, const Plan& plan, cudaStream_t stream) {
  return call.is_float16 ? start<__half>(call, plan, stream)
                         : start<__nv_bfloat16>(call, plan, stream);
}

const char* launch_int4_linear(const Int4Call& call, bool* is_done, cudaStream_t stream) {
  *is_done = false;
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  if (major < 8) {
    return "needs a GPU of compute capability 8.0 or newer: older ones have no mma.sync for these";
  }
  // The kernel has barriers in shared memory only where it was compiled for sm_90a.
  const auto kernel = many_rows<__nv_bfloat16, ManyRowsShape<10>>;
  const bool has_wgmma =
      major == 9 && on_current_device(reinterpret_cast<const void*>(kernel)).static_shared > 0;
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  Int4Call part = call;
  for (int left = call.batch; left > 0; left -= part.batch) {
    // A grid has at most 65535 blocks along x's rows.
    const Plan plan = kept_plan(call.n, call.k, std::min(left, 65535 * 8), processors, has_wgmma);
    if (plan.shape == kDequantize) return nullptr;
    part.batch = plan.batch;
    if (const char* error = launch_plan(part, plan, stream)) return error;
    part.x = static_cast<const __half*>(part.x) + static_cast<int64_t>(plan.batch) * call.k;
    part.y = static_cast<__half*>(part.y) +
             static_cast<int64_t>(plan.batch) * call.n / (call.is_gated ? 2 : 1);
  }
  *is_done = true;
  return nullptr;
}

const char* launch_add_residual(const Int4Call& call, cudaStream_t stream) {
  const int64_t threads = static_cast<int64_t>(call.batch) * (call.n / kStrip);
  if (threads == 0) return nullptr;
  return launch(add_residual, {static_cast<unsigned>(divide_up(threads, 256)), 256}, stream, call);
}

const char* launch_scale_rows(const Int4Call& call, cudaStream_t stream) {
  if (call.batch == 0) return nullptr;
  return launch(scale_rows, {static_cast<unsigned>(call.batch), 256}, stream, call);
}

const char* launch_dequantize(const Int4Call& call, cudaStream_t stream) {
  const int64_t threads = static_cast<int64_t>(call.n) * call.k / 32;
  const auto kernel = call.is_float16 ? dequantize<__half> : dequantize<__nv_bfloat16>;
  return launch(kernel, {static_cast<unsigned>(divide_up(threads, 256)), 256}, stream, call);
}
