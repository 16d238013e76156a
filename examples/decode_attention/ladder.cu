// The steps of docs/13_decode_attention.md that come before the operator: bfloat16, d 128, batch 1.
#include "attend.cuh"

namespace decode {

constexpr int kD = 128, kHeads = 32, kHeadsOfKey = 4;
using T = __nv_bfloat16;

// Steps 1 to 3, without tensor cores: a block computes kGroup query heads over its share of the
// tokens. A lane has 4 of the 128 columns, so a dot product is a sum over the warp.
template <int kGroup>
__global__ void __launch_bounds__(32 * kMaxWarps) plain(const __grid_constant__ AttendCall p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, splits = p.plan.splits;
  const int rank = blockIdx.x % splits, head = blockIdx.x / splits * kGroup;
  const auto row = [&](const Rows& x, int of, int token) {
    const T* at = static_cast<const T*>(x.data) + of * x.head + token * x.token;
    const uint2 found = reinterpret_cast<const uint2*>(at)[lane];
    const float2 a = unpack<T>(found.x), b = unpack<T>(found.y);
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
      const float4 k = row(p.keys, head / kHeadsOfKey, token);
      const float4 v = row(p.values, head / kHeadsOfKey, token);
      for (int n = 0; n < kGroup; ++n) {
        float score = q[n].x * k.x + q[n].y * k.y + q[n].z * k.z + q[n].w * k.w;
        for (int i = 16; i > 0; i /= 2) score += __shfl_xor_sync(~0u, score, i);
        const Part both[2] = {part[n], {v, score * p.scale * 1.4426950408889634f, 1}};
        part[n] = join_parts<2>(
            2, [&](int i) { return float2{both[i].max, both[i].weight}; },
            [&](int i) { return both[i].sum; });
      }
    }
  }
  __shared__ Part parts[kMaxWarps][kGroup][32];
  for (int n = 0; n < kGroup; ++n) parts[warp][n][lane] = part[n];
  __syncthreads();
  if (warp >= kGroup) return;
  const Part all = join_parts<kMaxWarps>(
      kMaxWarps,
      [&](int i) { return float2{parts[i][warp][lane].max, parts[i][warp][lane].weight}; },
      [&](int i) { return parts[i][warp][lane].sum; });
  if (splits == 1) return finish<T, kD>(p, 0, head + warp, lane, all);
  sums_of(p)[(blockIdx.x * kGroup + warp) * 32 + lane] = all.sum;
  stats_of(p)[blockIdx.x * kGroup + warp] = {all.max, all.weight};
}

// Step 4: the operator's kernel without copies ahead.
struct OneSlot : Shape<T, false, kD, 1> {
  static constexpr int kStages = 1;
};

}  // namespace decode

extern "C" const char* launch_step(int step, void* out, void* q, void* keys, void* values,
                                   const int* lengths, float* scratch, int capacity, int splits,
                                   cudaStream_t stream) {
  using namespace decode;
  const int64_t head = static_cast<int64_t>(capacity) * kD;
  const int units = step < 3 ? kHeads : kHeads / kHeadsOfKey;
  AttendCall p = {{1, kHeads, units, capacity, kD, DECODE_BFLOAT16, DECODE_BFLOAT16}};
  p.out = {out, 0, kD};
  p.q = {q, 0, kD};
  p.keys = {keys, 0, head, kD};
  p.values = {values, 0, head, kD};
  p.lengths = lengths;
  p.scale = 0.08838834764f;
  p.plan = {kMaxWarps, step == 1 ? 1 : splits, false};
  p.scratch = scratch;
  const int blocks = units * p.plan.splits, threads = 32 * kMaxWarps, shared = kMaxWarps * kRing;
  const auto kernel = attend<OneSlot>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (step < 3) plain<1><<<blocks, threads, 0, stream>>>(p);
  if (step == 3) plain<4><<<blocks, threads, 0, stream>>>(p);
  if (step == 4) kernel<<<blocks, threads, shared, stream>>>(p);
  if (p.plan.splits > 1) join<T, kD><<<p.heads, kJoiners * kD / 4, 0, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
