// rotate(x, cos, sin): rotary position embedding. It reads x where it lies, whatever its strides.
#include "rope.h"
#include "common/operator.h"
const char* launch_rotate(float* y, const float* x, View v, const float* cos, const float* sin,
                          void* stream);
constexpr Operator self = {"rotate"};

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  self.expect_tensor("x", x);
  if (x.dim() != 4 || x.size(3) % 2 != 0)
    self.refuse("x has shape ", text(x.sizes()), ", expected [b, h, n, d] with an even d");
  self.expect("x", x, x, ScalarType::Float, x.sizes());
  self.expect("cos", cos, x, ScalarType::Float, {x.size(2), x.size(3) / 2});
  self.expect("sin", sin, x, ScalarType::Float, {x.size(2), x.size(3) / 2});
  const View v{x.size(1),
               x.size(2),
               x.size(3) / 2,
               x.numel() / 2,
               {x.stride(0), x.stride(1), x.stride(2), x.stride(3)}};
  const Tensor y = torch::stable::new_empty(x, x.sizes());  // contiguous; empty_like keeps strides
  const Tensor tables[] = {torch::stable::contiguous(cos), torch::stable::contiguous(sin)};
  const auto *p = x.const_data_ptr<float>(), *c = tables[0].const_data_ptr<float>(),
             *s = tables[1].const_data_ptr<float>();
  auto* out = y.mutable_data_ptr<float>();
  if (x.is_cpu()) {
    const int64_t rows = x.size(0) * v.heads * v.tokens;
    for (int64_t row = 0; row < rows; ++row)  // divisions once per row: per pair they are slow
      for (int64_t i = 0; i < v.half; ++i) rotate_pairs<1>(row, i, out, p, v, c, s);
    return y;
  }
#ifdef USE_CUDA
  self.on_gpu(x, [&](void* stream) { return launch_rotate(out, p, v, c, s, stream); });
#endif
  return y;
}
STABLE_TORCH_LIBRARY(rope, m) { m.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(rope, CPU, m) { m.impl("rotate", TORCH_BOX(&rotate)); }
#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(rope, CUDA, m) { m.impl("rotate", TORCH_BOX(&rotate)); }
#endif
