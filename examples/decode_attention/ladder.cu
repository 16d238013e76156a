// The steps of docs/13_decode_attention.md that come before the operator: bfloat16, d 128, batch 1.
#include "attend.cuh"

namespace decode {

constexpr int kD = 128;

// Steps 1 to 3, without tensor cores: a block computes kGroup query heads over its share of the
// tokens. A lane has 4 of the 128 columns, so a dot product is a sum over the warp.
template <int kGroup>
__global__ void __launch_bounds__(32 * kMaxWarps)
    plain(const __grid_constant__ AttendCall p, int heads_of_key) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, splits = p.plan.splits;
  const int rank = blockIdx.x % splits, head = blockIdx.x / splits * kGroup;
  const auto row = [&](const Rows& x, int of, int token) {
    const auto* at = static_cast<const __nv_bfloat16*>(x.data) + of * x.head + token * x.token;
    const uint2 found = reinterpret_cast<const uint2*>(at)[lane];
    const float2 a = unpack<__nv_bfloat16>(found.x), b = unpack<__nv_bfloat16>(found.y);
    return float4{a.x, a.y, b.x, b.y};
  };
  float4 q[kGroup];
  Part part[kGroup];
  for (int n = 0; n < kGroup; ++n) {
    q[n] = row(p.q, head + n, 0);
    part[n] = {{0, 0, 0, 0}, -INFINITY, 0};
  }
  const int length = p.lengths[0], tiles = (length + kTile - 1) / kTile;
  for (int tile = rank * kMaxWarps + warp; tile < tiles; tile += splits * kMaxWarps) {
    for (int token = tile * kTile; token < min(tile * kTile + kTile, length); ++token) {
      const float4 k = row(p.keys, head / heads_of_key, token);
      const float4 v = row(p.values, head / heads_of_key, token);
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
        float score = q[n].x * k.x + q[n].y * k.y + q[n].z * k.z + q[n].w * k.w;
        for (int i = 16; i > 0; i /= 2) score += __shfl_xor_sync(~0u, score, i);
        score *= p.scale * 1.4426950408889634f;
        const Part both[2] = {part[n], {v, score, 1}};
        part[n] = join_parts(
            2, [&](int i) { return float2{both[i].max, both[i].weight}; },
            [&](int i) { return both[i].sum; });
      }
    }
  }
  __shared__ Part parts[kMaxWarps][kGroup][32];
  for (int n = 0; n < kGroup; ++n) parts[warp][n][lane] = part[n];
  __syncthreads();
  if (warp >= kGroup) return;
  const Part all = join_parts(
      kMaxWarps,
      [&](int i) { return float2{parts[i][warp][lane].max, parts[i][warp][lane].weight}; },
      [&](int i) { return parts[i][warp][lane].sum; });
  if (splits == 1) return finish<__nv_bfloat16, kD>(p, 0, head + warp, lane, all);
  reinterpret_cast<float4*>(p.scratch)[(blockIdx.x * kGroup + warp) * 32 + lane] = all.sum;
  auto* stats = reinterpret_cast<float2*>(p.scratch + p.heads * splits * kD);
  stats[blockIdx.x * kGroup + warp] = {all.max, all.weight};
}

// Step 4: the operator's kernel without copies ahead.
struct OneSlot : Shape<__nv_bfloat16, false, kD, 1> {
  static constexpr int kStages = 1;
};

}  // namespace decode

extern "C" const char* launch_step(int step, void* out, void* q, void* keys, void* values,
                                   const int* lengths, float* scratch, int capacity, int splits,
                                   cudaStream_t stream) {
  using namespace decode;
  const int64_t head = static_cast<int64_t>(capacity) * kD;
  const int units =
      step < 3 ? 32 : 8;  // what a block computes: one head, or four with their key head
  const AttendCall p = {{1, 32, units, capacity, kD, DECODE_BFLOAT16, false},
                        out,
                        {q, 0, kD, 1},
                        {keys, 0, head, kD},
                        {values, 0, head, kD},
                        {},
                        {},
                        lengths,
                        0.08838834764f,
                        {kMaxWarps, step == 1 ? 1 : splits, false},
                        scratch};
  const int blocks = p.key_heads * p.plan.splits;
  const auto kernel = attend<OneSlot>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxWarps * kRing);
  if (step < 3) plain<1><<<blocks, 32 * kMaxWarps, 0, stream>>>(p, 4);
  if (step == 3) plain<4><<<blocks, 32 * kMaxWarps, 0, stream>>>(p, 4);
  if (step == 4) kernel<<<blocks, 32 * kMaxWarps, kMaxWarps * kRing, stream>>>(p);
  if (p.plan.splits > 1) join<__nv_bfloat16, kD><<<p.heads, kJoiners * kD / 4, 0, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
