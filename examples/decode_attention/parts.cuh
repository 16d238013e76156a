// Parts of a softmax, and the second kernel that joins those of several blocks.
#pragma once
#include "common/instructions.cuh"
#include "decode_attention.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "decode_attention needs GPUs of sm_80 or newer; does TORCH_CUDA_ARCH_LIST name an older one?"
#endif

namespace decode {

template <typename T>
__device__ inline uint32_t pack(float x, float y) {
  if constexpr (std::is_same_v<T, __half>)
    return bits<uint32_t>(__floats2half2_rn(x, y));
  else
    return bits<uint32_t>(__floats2bfloat162_rn(x, y));
}
template <typename T>
__device__ inline float2 unpack(uint32_t x) {
  if constexpr (std::is_same_v<T, __half>)
    return __half22float2(bits<__half2>(x));
  else
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000)};
}

// A softmax over some tokens, for one head: the maximum of the scores, and the sum of the weights
// exp2(score - maximum).
struct alignas(8) Softmax {
  float maximum, sum;
};
// The same with four columns of the sum of weight * value.
struct Part {
  float4 out;
  Softmax softmax;
};
// Joins `count` parts, at most kMax. softmax(i) and out(i) load the i-th. All loads come first, so
// they wait together.
template <int kMax, typename LoadSoftmax, typename LoadOut>
__device__ inline Part join_parts(int count, LoadSoftmax softmax, LoadOut out) {
  Softmax softmaxes[kMax];
  float4 outs[kMax];
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    softmaxes[i] = i < count ? softmax(i) : Softmax{-INFINITY, 0};
    outs[i] = i < count ? out(i) : float4{0, 0, 0, 0};
  }
  Part all = {{0, 0, 0, 0}, {-INFINITY, 0}};
  for (const Softmax& x : softmaxes) all.softmax.maximum = fmaxf(all.softmax.maximum, x.maximum);
  const float most = all.softmax.maximum;
  const float shift = most == -INFINITY ? 0 : most;  // no tokens: factors of 0, not NaN
  for (int i = 0; i < kMax; ++i) {
    const float factor = exp_2(softmaxes[i].maximum - shift);
    all.softmax.sum += factor * softmaxes[i].sum;
    all.out = {all.out.x + factor * outs[i].x, all.out.y + factor * outs[i].y,
               all.out.z + factor * outs[i].z, all.out.w + factor * outs[i].w};
  }
  return all;
}

// Writes four columns of a query head. Without tokens, where the maximum is -infinity, they are 0;
// with scores that are all -infinity NaN, as in torch: 0 / 0.
template <typename T, int kColumns>
__device__ inline void finish(const AttendCall& p, int row, int head, int vector, const Part& x) {
  const float f = x.softmax.maximum == -INFINITY ? 0 : __fdividef(1, x.softmax.sum);
  T* to = static_cast<T*>(p.out.data) + row * p.out.batch + head * p.out.head + vector * 4;
  *reinterpret_cast<uint2*>(to) = {pack<T>(x.out.x * f, x.out.y * f),
                                   pack<T>(x.out.z * f, x.out.w * f)};
}

// Layout of the scratch memory: out [unit][block][head of the group][d], then the softmax of each.
__device__ inline float4* scratch_outs(const AttendCall& p) {
  return reinterpret_cast<float4*>(p.scratch);
}
__device__ inline Softmax* scratch_softmaxes(const AttendCall& p) {
  return reinterpret_cast<Softmax*>(p.scratch +
                                    static_cast<int64_t>(p.batch) * p.heads * p.plan.splits * p.d);
}

// The second kernel: a block joins the parts of one query head.
constexpr int kJoiners = 8;  // threads for four columns
template <typename T, int kColumns>
__global__ void __launch_bounds__(kJoiners* kColumns / 4)
    join(const __grid_constant__ AttendCall p) {
  constexpr int kVectors = kColumns / 4;
  __shared__ Part found[kJoiners][kVectors];
  const int group = p.heads / p.key_heads, splits = p.plan.splits;
  const int vector = threadIdx.x % kVectors, member = threadIdx.x / kVectors;
  const int row = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
  const int64_t first = (static_cast<int64_t>(row) * p.key_heads + head / group) * splits;
  const auto at = [&](int i) { return (first + member + i * kJoiners) * group + head % group; };
  launch_dependent_grids();
  wait_on_dependent_grids();
  found[member][vector] = join_parts<kMaxSplits / kJoiners>(
      (splits - member + kJoiners - 1) / kJoiners,
      [&](int i) { return scratch_softmaxes(p)[at(i)]; },
      [&](int i) { return scratch_outs(p)[at(i) * kVectors + vector]; });
  __syncthreads();
  if (member > 0) return;
  const Part all = join_parts<kJoiners>(
      kJoiners, [&](int i) { return found[i][vector].softmax; },
      [&](int i) { return found[i][vector].out; });
  finish<T, kColumns>(p, row, head, vector, all);
}

}  // namespace decode
