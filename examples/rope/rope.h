// The rotation, for the loop on a CPU and for the kernel. x: [batch, heads, tokens, 2 * half].
#include <torch/headeronly/macros/Macros.h>
struct View {
  int64_t heads, tokens, half, pairs, strides[4];  // in elements
};
template <int N>
struct alignas(4 * N) Pack {  // N = 4: one load or store of 16 bytes
  float at[N];
};
template <int N>  // rotates N pairs (x[column], x[column + half]) of one of the rows
C10_HOST_DEVICE void rotate_pairs(int64_t row, int64_t column, float* y, const float* x,
                                  const View& v, const float* cos, const float* sin) {
  const int64_t token = row % v.tokens;
  const int64_t head = row / v.tokens % v.heads, batch = row / v.tokens / v.heads;
  x += batch * v.strides[0] + head * v.strides[1] + token * v.strides[2] + column * v.strides[3];
  y += row * 2 * v.half + column;                 // contiguous
  const int64_t entry = token * v.half + column;  // of the tables, which batch and head share
  const auto load = [](const float* p) { return *reinterpret_cast<const Pack<N>*>(p); };
  const auto a = load(x), b = load(x + v.half * v.strides[3]), c = load(cos + entry),
             s = load(sin + entry);
  Pack<N> first, second;
  for (int j = 0; j < N; ++j) {
    first.at[j] = a.at[j] * c.at[j] - b.at[j] * s.at[j];
    second.at[j] = b.at[j] * c.at[j] + a.at[j] * s.at[j];
  }
  *reinterpret_cast<Pack<N>*>(y) = first;
  *reinterpret_cast<Pack<N>*>(y + v.half) = second;
}
