// The products of a step: x in 16 bits of integer times codes in 4, by mma.sync for bytes.
//
// A code is a byte for mma.sync once the other half of its byte is cleared: one instruction for
// four codes, where bfloat16 needs seven for eight. So x has to be integers: 16 bits for each
// number, under a scale for each group of 128 columns. A number is hi * 256 + lo, two bytes, and
// the two are neighbouring columns of the second factor.
#pragma once
#include "exchange.cuh"

namespace persistent {

// x of a warp: groups warp, warp + kWarps ..., of each text. The registers of one second factor
// have four slots: slot i is its columns 2 i (hi) and 2 i + 1 (lo), so its sums come to lanes with
// t = i. The texts of a group are neighbours.
template <int kGroups>
struct Activations {
  static constexpr int kSets = (kGroups * kTexts + 3) / 4;
  uint32_t b[kSets][4][2];  // four steps of 32 columns
  float scale[kSets];       // of the group and text whose sums come to this lane
  int sum[kSets];           // of its x, times 16: a zero multiplies it

  // Where a text of group s of the warp is.
  static __device__ constexpr int set(int s, int text) { return (s * kTexts + text) / 4; }
  static __device__ constexpr int slot(int s, int text) { return (s * kTexts + text) % 4; }
};

struct Quantized {
  uint32_t hi, lo;  // four bytes each
  float scale;
  int sum;
};

// Four columns for each lane. 16: codes in upper halves count 16 times, and the sums of those in
// lower halves are multiplied by 16 later. So all sums are 16 times too large.
__device__ inline Quantized quantize(float4 x) {
  constexpr float kMost = 127 * 256;                 // hi is at most 127
  constexpr float kInteger = 12582912, kHalf = 128;  // 1.5 x 2^23: the last bit counts as one
  const float mine = max_or_nan(max_or_nan(fabsf(x.x), fabsf(x.y)),  // so a NaN is not lost
                                max_or_nan(fabsf(x.z), fabsf(x.w)));
  const float most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(mine)));
  // A quarter of both: __fdividef() by more than 2^126 is 0.
  const float factor = most > 1e-30f ? __fdividef(kMost / 4, most / 4) : 0;
  uint32_t r[4];  // the lower 16 bits: a number + 128, so that lo is signed
  r[0] = __float_as_uint(fmaf(x.x, factor, kInteger + kHalf));
  r[1] = __float_as_uint(fmaf(x.y, factor, kInteger + kHalf));
  r[2] = __float_as_uint(fmaf(x.z, factor, kInteger + kHalf));
  r[3] = __float_as_uint(fmaf(x.w, factor, kInteger + kHalf));
  const uint32_t two = __byte_perm(r[0], r[1], 0x5140), others = __byte_perm(r[2], r[3], 0x5140);
  const int sum = r[0] + r[1] + r[2] + r[3] - 4 * __float_as_uint(kInteger + kHalf);
  return {__byte_perm(two, others, 0x7632), __byte_perm(two, others, 0x5410) ^ 0x80808080,
          most * (1 / (16 * kMost)), 16 * __reduce_add_sync(~0u, sum)};
}

// Turns a text's x, four columns of each group for a lane, into what mma.sync wants. Text 0 comes
// first. scratch: of the warp.
template <int kGroups>
__device__ inline void prepare(Activations<kGroups>& x, const float4 (&columns)[kGroups], int text,
                               uint32_t* scratch, const Consumer& c) {
  uint32_t* const to = scratch + c.lane % 4 * 8 + c.lane / 4;
  const uint32_t* const from = scratch + c.g % 2 * 32 + c.t * 8;
#pragma unroll
  for (int first = 0; first < kGroups; first += 2) {
#pragma unroll
    for (int s = first; s < first + 2 && s < kGroups; ++s) {
      const Quantized q = quantize(columns[s]);
      const int set = x.set(s, text), slot = x.slot(s, text);
      if (slot == 0 || c.t == slot) {
        x.scale[set] = q.scale;
        x.sum[set] = q.sum;
      }
      to[(s - first) * 64] = q.hi;
      to[(s - first) * 64 + 32] = q.lo;
    }
    __syncwarp();
#pragma unroll
    for (int s = first; s < first + 2 && s < kGroups; ++s) {
      const int set = x.set(s, text), slot = x.slot(s, text);
      if (slot == 0 || c.g / 2 == slot) {
        const auto* words = reinterpret_cast<const uint4*>(from + (s - first) * 64);
        const uint4 low = words[0], high = words[1];
        auto& b = x.b[set];
        b[0][0] = low.x, b[0][1] = low.y, b[1][0] = low.z, b[1][1] = low.w;
        b[2][0] = high.x, b[2][1] = high.y, b[3][0] = high.z, b[3][1] = high.w;
      }
    }
    __syncwarp();
  }
}

// What becomes of the sums of rows i and i + 1.
enum class Epilogue { kSend, kAddToResidual, kGate, kLogits };

// What is multiplied, and where the results go.
struct Product {
  int rows;  // of the weight
  Epilogue epilogue;
  const Tagged* x;
  const Half* norm;  // the weight of the norm before the product, or null
  Tagged* y;
};

// Some columns of a text's x, on their way.
template <int kGroups>
struct Incoming {
  static constexpr int kStep = kStageColumns / 2;  // from a group of this warp to its next one
  const Tagged* from;
  ulonglong2 found[kGroups];

  __device__ Incoming(const Tagged* x, int text, const Consumer& c)
      : from(x + text * kGroups * kStep + (c.warp * kColumns + c.lane * 4) / 2) {
#pragma unroll
    for (int s = 0; s < kGroups; ++s) found[s] = load_two_relaxed(from + s * kStep);
  }
};

// Waits for a text's x, and applies the norm's weight. Its other factor is the same for all
// columns: it multiplies the sums, later. Lanes leave the waits one by one, so they meet before any
// number is used: with a wait between two uses a step took 2% longer, and a step of two texts 5%.
template <Exchange kExchange, int kGroups>
__device__ inline void receive_x(Activations<kGroups>& x, const Incoming<kGroups>& incoming,
                                 const uint2 (&norm)[kGroups], int text, uint32_t* scratch,
                                 Consumer& c, const Product& p) {
  uint2 words[kGroups];
#pragma unroll
  for (int s = 0; s < kGroups; ++s)
    words[s] =
        receive_four<kExchange>(incoming.found[s], incoming.from + s * incoming.kStep, c.tag);
  __syncwarp();
  float4 columns[kGroups];
  float squares = 0;
#pragma unroll
  for (int s = 0; s < kGroups; ++s) {
    float4 v = floats(words[s]);
    if (p.norm) {
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      const float4 w = floats(norm[s]);
      v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    }
    columns[s] = v;
  }
  prepare(x, columns, text, scratch, c);
  if (p.norm) {
    for (int i = 1; i < 32; i *= 2) squares += __shfl_xor_sync(~0u, squares, i);
    if (c.lane == 0) c.shared.squares[text][c.warp] = squares;
  }
}

// All texts' x. Those of two texts are under way at once if there are registers for it.
template <Exchange kExchange, int kGroups>
__device__ inline Activations<kGroups> receive_all(Consumer& c, const Product& p) {
  Activations<kGroups> x;
  auto* const scratch = reinterpret_cast<uint32_t*>(c.shared.sums[c.buffer] + c.warp * kWarpFloats);
  uint2 norm[kGroups];
#pragma unroll
  for (int s = 0; s < kGroups; ++s) {
    const int column = s * kStageColumns + c.warp * kColumns + c.lane * 4;
    if (p.norm) norm[s] = *reinterpret_cast<const uint2*>(p.norm + column);
  }
  if constexpr (kTexts == 2 && kGroups <= 2) {
    const Incoming<kGroups> first(p.x, 0, c), second(p.x, 1, c);
    receive_x<kExchange>(x, first, norm, 0, scratch, c, p);
    receive_x<kExchange>(x, second, norm, 1, scratch, c, p);
  } else {
#pragma unroll
    for (int text = 0; text < kTexts; ++text)
      receive_x<kExchange>(x, Incoming<kGroups>(p.x, text, c), norm, text, scratch, c, p);
  }
  return x;
}

// Adds a unit's products: those of codes in lower and in upper halves of bytes come apart.
template <int kGroups>
__device__ inline void add_unit(float2& sums, Consumer& c, const Activations<kGroups>& x, int s) {
  const uint32_t unit = address(c.stage()) + c.warp * kUnit;
  const auto w = load_shared<uint4>(unit + c.lane * 16);
  const auto v = load_shared<uint4>(unit + 512 + c.lane * 16);
  const uint32_t words[] = {w.x, w.y, w.z, w.w, v.x, v.y, v.z, v.w};
  const float2 scales = floats(load_shared<uint32_t>(unit + kScales + c.g * 4));
  const int zeros = load_shared<uint16_t>(unit + kZeros + c.g * 2);
  c.release();
  const int set = x.set(s, 0);  // of all texts
  int lower[4] = {}, upper[4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t a[2][4];
    for (int j = 0; j < 4; ++j) {
      a[0][j] = words[4 * i + j] & 0x0f0f0f0f;
      a[1][j] = words[4 * i + j] & 0xf0f0f0f0;
    }
    multiply_bytes(lower, a[0], x.b[set][i][0], x.b[set][i][1]);
    multiply_bytes(upper, a[1], x.b[set][2 + i][0], x.b[set][2 + i][1]);
  }
  int both[4];  // hi and lo of the even row, and of the odd one
  for (int i = 0; i < 4; ++i) both[i] = 16 * lower[i] + upper[i];
  const int even = 256 * both[0] + both[1] - (zeros & 0xff) * x.sum[set];
  const int odd = 256 * both[2] + both[3] - (zeros >> 8) * x.sum[set];
  if (c.t / kTexts == s % (4 / kTexts)) {  // this lane has a text of this group
    sums.x += scales.x * x.scale[set] * static_cast<float>(even);
    sums.y += scales.y * x.scale[set] * static_cast<float>(odd);
  }
}

// Joins the warps' sums of some strips, kParts threads for each pair of rows of each text; applies
// the norm's factor; stores or sends.
__device__ inline void finish(Consumer& c, const float* all, const Product& p, int first,
                              int strips, float columns, uint32_t tag) {
  constexpr int kParts = 8 / kTexts;  // threads for a pair of rows
  const int part = c.thread % kParts, strip = c.thread / kParts / 8 / kTexts;
  const int text = c.thread / kParts / 8 % kTexts, row = c.thread / kParts % 8 * 2;
  if (strip >= strips) return;  // all of a warp's threads, or none
  const int first_warp = part * (kWarps / kParts), end = first_warp + kWarps / kParts;
  float2 y = {0, 0};
  for (int w = first_warp; w < end; ++w) {
    const float* const sums = all + w * kWarpFloats + text * kTextFloats + strip * 20 + row;
    y = {y.x + sums[0], y.y + sums[1]};
  }
  for (int i = 1; i < kParts; i *= 2) {
    y.x += __shfl_xor_sync(~0u, y.x, i);
    y.y += __shfl_xor_sync(~0u, y.y, i);
  }
  if (p.norm) {
    float squares = 0;
    for (int w = first_warp; w < end; ++w) squares += c.shared.squares[text][w];
    for (int i = 1; i < kParts; i *= 2) squares += __shfl_xor_sync(~0u, squares, i);
    const float factor = rsqrtf(squares / columns + c.step.eps);
    y = {y.x * factor, y.y * factor};
  }
  const int token = first_row(first + strip) + row, index = (text * p.rows + token) / 2;
  if (p.epilogue == Epilogue::kGate) {
    const float one = __fdividef(y.x, 1 + __expf(-y.x)) * y.y;
    const float next = __shfl_down_sync(~0u, one, kParts);
    if (part == 0 && row % 4 == 0) send(p.y + index / 2, pack(one, next), tag);
    return;
  }
  if (part != 0) return;
  if (p.epilogue == Epilogue::kAddToResidual) {
    float2& x = *reinterpret_cast<float2*>(c.shared.residual[text] + (first + strip) * kRows + row);
    y = x = {x.x + y.x, x.y + y.y};
  }
  if (p.epilogue == Epilogue::kLogits) {
    c.step.logits[index] = bits<__nv_bfloat162>(pack(y.x, y.y));
    float2& best = c.shared.best[text][strip * 8 + row / 2];
    if (y.x > best.x) best = {y.x, __int_as_float(token)};
    if (y.y > best.x) best = {y.y, __int_as_float(token + 1)};
  } else {
    send(p.y + index, pack(y.x, y.y), tag);
  }
}

template <Exchange kExchange, int kGroups>
__device__ inline void multiply(Consumer& c, const Product& p, uint32_t tag) {
  const Activations<kGroups> x = receive_all<kExchange, kGroups>(c, p);
  const int strips = strips_of(p.rows);
  for (int first = 0; first < strips; first += kChunk) {
    const int count = min(kChunk, strips - first);
    float* const all = c.next_sums();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      float2 sums = {0, 0};
#pragma unroll
      for (int s = 0; s < kGroups; ++s) add_unit(sums, c, x, s);
      for (int j = kTexts; j < min(kGroups * kTexts, 4); j *= 2) {
        sums.x += __shfl_xor_sync(~0u, sums.x, j);
        sums.y += __shfl_xor_sync(~0u, sums.y, j);
      }
      float* const to = all + c.warp * kWarpFloats + c.t * kTextFloats + i * 20 + 2 * c.g;
      if (c.t < kTexts) *reinterpret_cast<float2*>(to) = sums;
    }
    c.sync();
    finish(c, all, p, first, count, kGroups * kStageColumns, tag);
  }
  grid_barrier<kExchange>(c);
}

}  // namespace persistent
