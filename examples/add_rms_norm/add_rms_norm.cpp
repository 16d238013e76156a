// The operator (returns y, s, rstd) and its gradient (dx, dweight), on torch's ABI-stable headers:
// checks, allocation, launch.
#include <optional>
#include <tuple>
#include <type_traits>

#include "add_rms_norm.h"
#include "common/operator.h"

using namespace torch::stable;  // contiguous, empty_like, new_empty

namespace {

constexpr Operator self = {"add_rms_norm"};

RmsDtype dtype_of(const Tensor& x) {
  const ScalarType type = x.scalar_type();
  if (type == ScalarType::Float) return RMS_FLOAT32;
  if (type == ScalarType::Double) return RMS_FLOAT64;
  if (type == ScalarType::Half) return RMS_FLOAT16;
  if (type == ScalarType::BFloat16) return RMS_BFLOAT16;
  self.refuse("expected float32, float64, float16 or bfloat16");
}

// rstd is float32, or float64 for float64.
ScalarType statistics_type(const Tensor& a) {
  return a.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

void check_weight(const Tensor& weight, const Tensor& a) {
  if (a.dim() == 0 || a.sizes().back() == 0) self.refuse("a has no last dimension, or it is empty");
  const bool is_wide = weight.defined() && weight.scalar_type() == statistics_type(a);
  const ScalarType type = is_wide ? statistics_type(a) : a.scalar_type();
  self.expect("weight", weight, a, type, a.sizes().slice(a.dim() - 1));
}

// Computes on a's device.
template <typename Arguments>
void run(Arguments x, const Tensor& a) {
#ifdef USE_CUDA
  if (a.is_cuda()) {
    self.on_gpu(a, [&](CUstream_st* stream) {
      // Freed when this function returns, before the kernels have run: torch gives the memory only
      // to later work on this stream.
      std::optional<Tensor> scratch;
      if constexpr (std::is_same_v<Arguments, RmsBackward>) {
        scratch = new_empty(a, {rms_scratch_size(x)}, statistics_type(a));
        x.scratch = scratch->mutable_data_ptr();
      }
      return launch_add_rms_norm(x, stream);
    });
    return;
  }
#endif
  add_rms_norm_cpu(x);
}

void* out(const Tensor& x) { return x.mutable_data_ptr(); }
const void* in(const Tensor& x) { return x.const_data_ptr(); }

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& a, const Tensor& b, const Tensor& weight,
                                           double eps) {
  self.expect_tensor("a", a);
  const RmsDtype dtype = dtype_of(a);
  self.expect("b", b, a, a.scalar_type(), a.sizes());
  check_weight(weight, a);
  const int64_t last = a.dim() - 1, width = a.size(last), rows = a.numel() / width;
  const Tensor x = contiguous(a), z = contiguous(b), w = contiguous(weight);
  Tensor y = empty_like(x), s = empty_like(x);
  Tensor rstd = new_empty(a, a.sizes().slice(0, last), statistics_type(a));
  run(RmsForward{out(y), out(s), out(rstd), in(x), in(z), in(w), eps, rows, width, dtype,
                 dtype_of(w)},
      a);
  return {y, s, rstd};
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, std::optional<Tensor> ds, const Tensor& s,
                                    const Tensor& weight, const Tensor& rstd) {
  self.expect_tensor("s", s);
  const RmsDtype dtype = dtype_of(s);
  self.expect("dy", dy, s, s.scalar_type(), s.sizes());
  if (ds) self.expect("ds", *ds, s, s.scalar_type(), s.sizes());
  check_weight(weight, s);
  const int64_t width = weight.numel(), rows = s.numel() / width;
  self.expect("rstd", rstd, s, statistics_type(s), s.sizes().slice(0, s.dim() - 1));
  const Tensor x = contiguous(s), grad = contiguous(dy), w = contiguous(weight);
  const Tensor r = contiguous(rstd);
  if (ds) ds = contiguous(*ds);
  Tensor dx = empty_like(x), dweight = empty_like(w);
  run(RmsBackward{out(dx), out(dweight), nullptr, in(grad), ds ? in(*ds) : nullptr, in(x), in(w),
                  in(r), rows, width, dtype, dtype_of(w)},
      s);
  return {dx, dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY(add_rms_norm, m) {
  m.def("add_rms_norm(Tensor a, Tensor b, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)");
  m.def(
      "add_rms_norm_backward(Tensor dy, Tensor? ds, Tensor s, Tensor weight, Tensor rstd) -> "
      "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(add_rms_norm, CPU, m) {
  m.impl("add_rms_norm", TORCH_BOX(&forward));
  m.impl("add_rms_norm_backward", TORCH_BOX(&backward));
}

#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(add_rms_norm, CUDA, m) {
  m.impl("add_rms_norm", TORCH_BOX(&forward));
  m.impl("add_rms_norm_backward", TORCH_BOX(&backward));
}
#endif
