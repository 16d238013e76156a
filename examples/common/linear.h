// F.linear by torch's own kernels, for operators in C++: where theirs does not run, or is slower.
#pragma once
#include <optional>

#include "common/operator.h"

namespace linear {

namespace values = torch::stable::detail;

// y = x w^T + bias; or, if `gates` > 0, silu(gates) * partners of it: its columns are so many
// gates, then their partners, and so on. y is contiguous, [rows, N] or [rows, N / 2]; x: [rows, K],
// w: [N, K]. (Autocast leaves operators with out= alone.)
inline void by_torch(const Tensor& y, const Tensor& x, const Tensor& w,
                     const std::optional<Tensor>& bias, int64_t gates) {
  const int64_t rows = x.size(0), n = w.size(0);
  const Tensor all = gates > 0 ? torch::stable::new_empty(x, {rows, n}) : y;
  StableIValue stack[] = {values::from(x), values::from(w), values::from(bias), values::from(all)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "out", stack, TORCH_ABI_VERSION));
  values::to<Tensor>(stack[0]);  // takes the reference that the call returned
  if (gates == 0) return;
  Tensor pairs = torch::stable::view(all, {rows * n / (2 * gates), 2, gates});
  StableIValue gate[] = {values::from(torch::stable::narrow(pairs, 1, 0, 1))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::silu", "", gate, TORCH_ABI_VERSION));
  StableIValue product[] = {values::from(values::to<Tensor>(gate[0])),
                            values::from(torch::stable::narrow(pairs, 1, 1, 1)),
                            values::from(torch::stable::view(y, {pairs.size(0), 1, gates}))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mul", "out", product, TORCH_ABI_VERSION));
  values::to<Tensor>(product[0]);
}

}  // namespace linear
