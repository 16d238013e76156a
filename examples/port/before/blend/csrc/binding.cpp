// The gradients, and the Python module.
#include "blend.h"

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

struct Blend : torch::autograd::Function<Blend> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b,
                            const OptionalTensor& mask, double alpha) {
    ctx->saved_data["alpha"] = alpha;
    ctx->save_for_backward({mask.value_or(at::Tensor())});
    return blend(a, b, mask, alpha);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const double alpha = ctx->saved_data["alpha"].toDouble();
    const at::Tensor mask = ctx->get_saved_variables()[0], grad = grads[0];
    at::Tensor grad_a = grad * alpha, grad_b = grad * (1 - alpha);
    if (mask.defined()) {
      grad_a = at::where(mask, grad_a, grad);
      grad_b = at::where(mask, grad_b, 0);  // not grad_b * mask: infinity * 0 is NaN
    }
    return {grad_a, grad_b, at::Tensor(), at::Tensor()};
  }
};

struct SumList : torch::autograd::Function<SumList> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList tensors) {
    ctx->saved_data["count"] = static_cast<int64_t>(tensors.size());
    return sum_list(tensors.vec());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return variable_list(ctx->saved_data["count"].toInt(), grads[0]);
  }
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("blend", [](const at::Tensor& a, const at::Tensor& b, const OptionalTensor& mask,
                    double alpha) { return Blend::apply(a, b, mask, alpha); });
  m.def("sum_list", [](const std::vector<at::Tensor>& tensors) {
    return SumList::apply(at::TensorList(tensors));
  });
}
