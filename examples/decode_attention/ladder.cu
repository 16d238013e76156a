// The steps of docs/13_decode_attention.md that come before the operator: its kernel without copies
// ahead. bfloat16, d 128, batch 1, 32 query heads, 8 key heads.
#include "attend.cuh"

namespace decode {
struct OneSlot : Shape<__nv_bfloat16, false, 128, 4> {
  static constexpr int kStages = 1;
};
}  // namespace decode

// Each key head is a row of a batch here. Its four query heads share a block, or have blocks of
// their own, which read the same keys.
extern "C" const char* launch_step(void* out, void* q, void* keys, void* values, int* lengths,
                                   float* scratch, int capacity, bool is_shared, int splits,
                                   cudaStream_t stream) {
  using S = decode::OneSlot;
  const int64_t head = static_cast<int64_t>(capacity) * S::D;
  AttendCall p = {{8, 4, is_shared ? 1 : 4, capacity, S::D, DECODE_BFLOAT16, DECODE_BFLOAT16}};
  p.out = {out, 4 * S::D, S::D};
  p.q = {q, 4 * S::D, S::D};
  p.keys = {keys, head, 0, S::D};
  p.values = {values, head, 0, S::D};
  p.lengths = lengths;
  p.scale = 0.08838834764f;
  p.plan = {kMaxWarps, splits, false};
  p.scratch = scratch;
  const int blocks = p.batch * p.key_heads * splits, shared = kMaxWarps * kRing;
  const auto kernel = decode::attend<S>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  kernel<<<blocks, 32 * kMaxWarps, shared, stream>>>(p);
  if (splits > 1) decode::join<S::Query, S::D><<<32, decode::kJoiners * S::D / 4, 0, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
