// An RMSNorm between two products has no kernel of its own: they share its work.
//
//   s = residual + y;  x = s * weight / rms(s);  the next y = x * W^T
//
// The product before it has each y in one thread, at its end. That thread adds the residual, stores
// s and s * weight, and leaves the sum of the squares of each 16 columns. The product after it
// takes s * weight for x. 1 / rms is one number for each row, so it can wait for the end: the sums
// are multiplied by it. Both main loops stay as they are. This is only for bfloat16: it has the
// exponents of float32, so no s * weight is too large.
#pragma once
#include "codes.cuh"

namespace four_bit {

// What a thread adds to y in two columns, and the norm's weight there.
struct Addend {
  __nv_bfloat162 residual = {}, weight = {};
};
// place: of the first column, among all numbers of y.
__device__ inline Addend load_addend(const Int4Call& p, int64_t place, int column) {
  return {static_cast<const __nv_bfloat162*>(p.residual)[place / 2],
          static_cast<const __nv_bfloat162*>(p.norm_weight)[column / 2]};
}

// Stores what the next norm needs of two columns. Returns the sum of their squares. Numbers are
// rounded where a product and an addition would round them.
__device__ inline float add_to_residual(const Int4Call& p, int64_t place, float2 y,
                                        const Addend& addend) {
  using Bf16 = Half<__nv_bfloat16>;
  const auto sum = Bf16::pair(Bf16::floats(Bf16::pair(y)) + Bf16::floats(addend.residual));
  const float2 wide = Bf16::floats(sum), weight = Bf16::floats(addend.weight);
  static_cast<__nv_bfloat162*>(p.y)[place / 2] = sum;
  static_cast<__nv_bfloat162*>(p.weighted)[place / 2] =
      Bf16::pair({wide.x * weight.x, wide.y * weight.y});
  return wide.x * wide.x + wide.y * wide.y;
}

// 1 / rms of a row of x. All lanes of a warp call it; each gets the same bits.
__device__ inline float find_scale(const Int4Call& p, int64_t row) {
  const float* squares = p.squares + row * (p.k / kStrip);
  float sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x % 32 * 4; i < p.k / kStrip; i += 32 * 4) {
    const float4 four = *reinterpret_cast<const float4*>(squares + i);
    sum += (four.x + four.y) + (four.z + four.w);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  return __frsqrt_rn(sum / static_cast<float>(p.k) + p.eps);
}

}  // namespace four_bit
