// Checks, the choice of the device, and the Python module.
#include "points.h"

#define CHECK_INPUT(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

#ifdef WITH_CUDA
#define CALL(name, x, ...) (x.is_cuda() ? name##_cuda(__VA_ARGS__) : name##_cpu(__VA_ARGS__))
#else
#define CALL(name, x, ...) (check_cpu(x), name##_cpu(__VA_ARGS__))
static void check_cpu(const at::Tensor& x) {
  if (x.is_cuda()) AT_ERROR("points was compiled without CUDA");
}
#endif

static void check_cloud(const at::Tensor& xyz) {
  CHECK_INPUT(xyz);
  TORCH_CHECK(xyz.dim() == 3 && xyz.size(2) == 3, "xyz must have the shape [batch, n, 3]");
}

static void check_centers(const at::Tensor& xyz, const at::Tensor& centers) {
  check_cloud(xyz);
  CHECK_INPUT(centers);
  TORCH_CHECK(centers.dim() == 3 && centers.size(2) == 3 && centers.size(0) == xyz.size(0),
              "centers must have the shape [batch, m, 3]");
  TORCH_CHECK(centers.device() == xyz.device() && centers.scalar_type() == xyz.scalar_type(),
              "centers must have the device and the dtype of xyz");
}

static void check_index(const at::Tensor& x, const at::Tensor& index) {
  CHECK_INPUT(index);
  TORCH_CHECK(index.scalar_type() == at::kInt, "index must have the dtype int32");
  TORCH_CHECK(index.dim() == 3 && index.size(0) == x.size(0),
              "index must have the shape [batch, m, count]");
  TORCH_CHECK(index.device() == x.device(), "index must have the device of the other tensor");
}

at::Tensor farthest(const at::Tensor& xyz, int64_t count) {
  check_cloud(xyz);
  TORCH_CHECK(count > 0 && count <= xyz.size(1), "count must lie between 1 and the points");
  return CALL(farthest, xyz, xyz, count);
}

at::Tensor ball(const at::Tensor& xyz, const at::Tensor& centers, double radius, int64_t count) {
  check_centers(xyz, centers);
  TORCH_CHECK(count > 0 && xyz.size(1) > 0, "count and the number of points must be positive");
  return CALL(ball, xyz, xyz, centers, radius, count);
}

std::tuple<at::Tensor, at::Tensor> nearest(const at::Tensor& xyz, const at::Tensor& centers) {
  check_centers(xyz, centers);
  TORCH_CHECK(xyz.size(1) >= 3, "xyz must have at least 3 points");
  return CALL(nearest, xyz, xyz, centers);
}

at::Tensor group(const at::Tensor& features, const at::Tensor& index) {
  CHECK_INPUT(features);
  TORCH_CHECK(features.dim() == 3, "features must have the shape [batch, channels, n]");
  check_index(features, index);
  return CALL(group, features, features, index);
}

at::Tensor group_backward(const at::Tensor& grad, const at::Tensor& index, int64_t n) {
  CHECK_INPUT(grad);
  check_index(grad, index);
  return CALL(group_backward, grad, grad, index, n);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("farthest", &farthest);
  m.def("ball", &ball);
  m.def("nearest", &nearest);
  m.def("group", &group);
  m.def("group_backward", &group_backward);
}
