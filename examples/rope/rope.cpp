// rotate(x, cos, sin): rotary position embedding. It reads x where it lies, whatever its strides.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "rope.h"
using torch::stable::Tensor;
const char* launch_rotate(float* y, const float* x, View v, const float* cos, const float* sin,
                          void* stream);
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  bool fits = x.defined() && x.dim() == 4 && x.size(3) % 2 == 0;
  for (const Tensor& t : {cos, sin})
    fits = fits && t.defined() && t.dim() == 2 && t.size(0) == x.size(2) &&
           2 * t.size(1) == x.size(3) && t.get_device_index() == x.get_device_index();
  for (const Tensor& t : {x, cos, sin})
    fits = fits && t.scalar_type() == torch::headeronly::ScalarType::Float;
  if (!fits) throw std::runtime_error("rotate: expected float32 x [b, h, n, d], tables [n, d / 2]");
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
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  void* stream;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  if (auto error = launch_rotate(out, p, v, c, s, stream)) throw std::runtime_error(error);
#endif
  return y;
}
STABLE_TORCH_LIBRARY(rope, m) { m.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(rope, CPU, m) { m.impl("rotate", TORCH_BOX(&rotate)); }
#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(rope, CUDA, m) { m.impl("rotate", TORCH_BOX(&rotate)); }
#endif
