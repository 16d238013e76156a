// The steps of docs/13_decode_attention.md that come before the operator: its kernel without copies
// ahead. bfloat16, d 128, batch 1, 32 query heads, 8 key heads.
#include "attend.cuh"
#include "common/launch.cuh"

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
  const unsigned blocks = p.batch * p.key_heads * splits;
  const char* error =
      launch(decode::attend<S>, {blocks, 32 * kMaxWarps, kMaxWarps * kRing}, stream, p);
  if (error != nullptr || splits == 1) return error;
  return launch(decode::join<S::Query, S::D>, {32, decode::kJoiners * S::D / 4}, stream, p);
}
