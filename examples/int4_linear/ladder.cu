// The first step of docs/12_int4_linear.md, in bfloat16: a warp per output. It reads codes row by
// row: word [n, k / 8], column 2 i + j of a word as code 4 j + i. Later steps are the operator's
// kernels in other shapes than plan.h would choose.
#include "codes.cuh"
#include "common/launch.cuh"
#include "plan.h"

using T = __nv_bfloat16;
using namespace four_bit;

// Each lane loads 16 bytes of codes, converts them, and multiplies.
template <int M>
__global__ void dot_products(const Int4Call p) {
  const int n = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[M] = {};
  for (int at = lane; at < p.k / 32; at += 32) {
    const Words found =
        static_cast<const Words*>(p.packed)[n * static_cast<int64_t>(p.k / 32) + at];
    const int64_t affine = at / 4 * static_cast<int64_t>(p.n) + n;
    const float scale = __bfloat162float(static_cast<const T*>(p.scale)[affine]),
                zero = static_cast<const uint8_t*>(p.zero)[affine];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const auto* x = static_cast<const __nv_bfloat162*>(p.x) + m * p.k / 2 + at * 16;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const uint32_t word = found.at[i / 4] >> i % 4 * 4;
        const float2 pair = Half<T>::floats(x[i]);
        sum += (int(word & 15) - zero) * pair.x + (int(word >> 16 & 15) - zero) * pair.y;
      }
      sums[m] += scale * sum;
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int other = 16; other; other /= 2) sums[m] += __shfl_xor_sync(~0u, sums[m], other);
    if (lane == 0) static_cast<T*>(p.y)[m * p.n + n] = __float2bfloat16(sums[m]);
  }
}

// shape: -1 for the kernel above, or of kShapes. 1 or 16 rows of x for the former.
extern "C" const char* launch_step(int shape, int splits, const Int4Call* call,
                                   cudaStream_t stream) {
  if (shape >= 0) return launch_plan(*call, {shape, splits, 0, call->batch, 0}, stream);
  const auto kernel = call->batch == 1 ? dot_products<1> : dot_products<16>;
  return launch(kernel, {static_cast<unsigned>(call->n / 8), 256}, stream, *call);
}
