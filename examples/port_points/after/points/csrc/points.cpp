// Checks, the choice of the device, and the operators.
#include "points.h"

#include <torch/csrc/stable/library.h>

#ifdef WITH_CUDA
#define CALL(name, x, ...) (x.is_cuda() ? name##_cuda(__VA_ARGS__) : name##_cpu(__VA_ARGS__))
#else
#define CALL(name, x, ...) name##_cpu(__VA_ARGS__)
#endif

using torch::stable::contiguous;

static void check_cloud(const Tensor& xyz) {
  STD_TORCH_CHECK(xyz.dim() == 3 && xyz.size(2) == 3, "xyz must have the shape [batch, n, 3]");
}

static void check_centers(const Tensor& xyz, const Tensor& centers) {
  check_cloud(xyz);
  STD_TORCH_CHECK(centers.dim() == 3 && centers.size(2) == 3 && centers.size(0) == xyz.size(0),
                  "centers must have the shape [batch, m, 3]");
  STD_TORCH_CHECK(centers.device() == xyz.device() && centers.scalar_type() == xyz.scalar_type(),
                  "centers must have the device and the dtype of xyz");
}

static void check_index(const Tensor& x, const Tensor& index) {
  STD_TORCH_CHECK(index.scalar_type() == ScalarType::Int, "index must have the dtype int32");
  STD_TORCH_CHECK(index.dim() == 3 && index.size(0) == x.size(0),
                  "index must have the shape [batch, m, count]");
  STD_TORCH_CHECK(index.device() == x.device(), "index must have the device of the other tensor");
}

Tensor farthest(const Tensor& xyz, int64_t count) {
  check_cloud(xyz);
  STD_TORCH_CHECK(count > 0 && count <= xyz.size(1), "count must lie between 1 and the points");
  return CALL(farthest, xyz, contiguous(xyz), count);
}

Tensor ball(const Tensor& xyz, const Tensor& centers, double radius, int64_t count) {
  check_centers(xyz, centers);
  STD_TORCH_CHECK(count > 0 && xyz.size(1) > 0, "count and the number of points must be positive");
  return CALL(ball, xyz, contiguous(xyz), contiguous(centers), radius, count);
}

std::tuple<Tensor, Tensor> nearest(const Tensor& xyz, const Tensor& centers) {
  check_centers(xyz, centers);
  STD_TORCH_CHECK(xyz.size(1) >= 3, "xyz must have at least 3 points");
  return CALL(nearest, xyz, contiguous(xyz), contiguous(centers));
}

Tensor group(const Tensor& features, const Tensor& index) {
  STD_TORCH_CHECK(features.dim() == 3, "features must have the shape [batch, channels, n]");
  check_index(features, index);
  return CALL(group, features, contiguous(features), contiguous(index));
}

Tensor group_backward(const Tensor& grad, const Tensor& index, int64_t n) {
  check_index(grad, index);
  STD_TORCH_CHECK(grad.dim() == 4 && grad.size(2) == index.size(1) && grad.size(3) == index.size(2),
                  "grad must have the shape [batch, channels, m, count]");
  return CALL(group_backward, grad, contiguous(grad), contiguous(index), n);
}

STABLE_TORCH_LIBRARY(points, m) {
  m.def("farthest(Tensor xyz, SymInt count) -> Tensor");
  m.def("ball(Tensor xyz, Tensor centers, float radius, SymInt count) -> Tensor");
  m.def("nearest(Tensor xyz, Tensor centers) -> (Tensor, Tensor)");
  m.def("group(Tensor features, Tensor index) -> Tensor");
  m.def("group_backward(Tensor grad, Tensor index, SymInt n) -> Tensor");
}

// For the CPU, and for CUDA where that was compiled.
#define IMPLEMENT(key)                                    \
  STABLE_TORCH_LIBRARY_IMPL(points, key, m) {             \
    m.impl("farthest", TORCH_BOX(&farthest));             \
    m.impl("ball", TORCH_BOX(&ball));                     \
    m.impl("nearest", TORCH_BOX(&nearest));               \
    m.impl("group", TORCH_BOX(&group));                   \
    m.impl("group_backward", TORCH_BOX(&group_backward)); \
  }
IMPLEMENT(CPU)
#ifdef WITH_CUDA
IMPLEMENT(CUDA)
#endif
