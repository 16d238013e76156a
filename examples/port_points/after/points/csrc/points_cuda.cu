// Dispatch_v2.h uses STD_TORCH_CHECK, which points.h includes before it.
#include "points.h"
//
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/headeronly/core/Dispatch_v2.h>
#include <torch/headeronly/core/TensorAccessor.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "search.h"

// torch declares it only under USE_CUDA. Weak: a torch without CUDA does not define it.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

template <typename T, int N>
using Accessor = torch::headeronly::HeaderOnlyGenericPackedTensorAccessor<
    T, N, torch::headeronly::RestrictPtrTraits, int32_t>;

// at::'s packed_accessor32 refuses tensors that are too large for it. The stable one cuts sizes
// off.
static const Tensor& small(const Tensor& x) {
  STD_TORCH_CHECK(x.numel() <= std::numeric_limits<int32_t>::max(), "a tensor has 2^31 elements");
  return x;
}

static cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

static void check_launch() {
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error));
}

constexpr int kThreads = 256;

// One block for each cloud. Each thread keeps the distances of every 256th point in global memory.
template <typename T>
__global__ void farthest_kernel(Accessor<const T, 3> xyz, Accessor<T, 2> nearest,
                                Accessor<int, 2> index) {
  __shared__ T best[kThreads];
  __shared__ int best_at[kThreads];
  const int b = blockIdx.x, n = xyz.size(1);
  int last = 0;
  for (int k = 1; k < index.size(1); ++k) {
    T mine = -1;
    int mine_at = 0;
    for (int i = threadIdx.x; i < n; i += kThreads) {
      const T distance = squared_distance<T>(xyz[b][i], xyz[b][last]);
      const T least = distance < nearest[b][i] ? distance : nearest[b][i];
      nearest[b][i] = least;
      if (least > mine) {
        mine = least;
        mine_at = i;
      }
    }
    best[threadIdx.x] = mine;
    best_at[threadIdx.x] = mine_at;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      const int one = threadIdx.x, other = one + half;
      if (one < half && (best[other] > best[one] ||
                         (best[other] == best[one] && best_at[other] < best_at[one]))) {
        best[one] = best[other];
        best_at[one] = best_at[other];
      }
      __syncthreads();
    }
    last = best_at[0];
    if (threadIdx.x == 0) index[b][k] = last;
    __syncthreads();  // before best is written again
  }
}

template <typename T>
__global__ void ball_kernel(Accessor<const T, 3> xyz, Accessor<const T, 3> centers, T radius,
                            Accessor<int, 3> index) {
  const int b = blockIdx.y, m = blockIdx.x * kThreads + threadIdx.x;
  if (m < centers.size(1)) find_in_ball<T>(xyz[b], centers[b][m], radius, index[b][m]);
}

template <typename T>
__global__ void nearest_kernel(Accessor<const T, 3> xyz, Accessor<const T, 3> centers,
                               Accessor<T, 3> distance, Accessor<int, 3> index) {
  const int b = blockIdx.y, m = blockIdx.x * kThreads + threadIdx.x;
  if (m < centers.size(1)) find_nearest<T>(xyz[b], centers[b][m], distance[b][m], index[b][m]);
}

template <typename T>
__global__ void group_kernel(Accessor<const T, 3> features, Accessor<const int, 3> index,
                             Accessor<T, 4> y) {
  const int b = blockIdx.y, i = blockIdx.x * kThreads + threadIdx.x, count = index.size(2);
  if (i >= index.size(1) * count) return;
  const int point = index[b][i / count][i % count];
  CUDA_KERNEL_ASSERT(point >= 0 && point < features.size(2));
  for (int c = 0; c < y.size(1); ++c) y[b][c][i / count][i % count] = features[b][c][point];
}

// The headers of torch 2.14 and later have gpuAtomicAdd. Older ones have no atomics.
template <typename T>
__device__ void add_at(T* address, T value) {
  if constexpr (std::is_same_v<T, torch::headeronly::Half>) {
    atomicAdd(reinterpret_cast<__half*>(address), static_cast<__half>(value));
  } else {
    atomicAdd(address, value);
  }
}

// Several elements of grad may belong to one point, and their threads add at the same time.
template <typename T>
__global__ void group_backward_kernel(Accessor<const T, 4> grad, Accessor<const int, 3> index,
                                      Accessor<T, 3> sums) {
  const int b = blockIdx.y, i = blockIdx.x * kThreads + threadIdx.x, count = index.size(2);
  if (i >= index.size(1) * count) return;
  const int point = index[b][i / count][i % count];
  CUDA_KERNEL_ASSERT(point >= 0 && point < sums.size(2));
  for (int c = 0; c < grad.size(1); ++c) {
    add_at(&sums[b][c][point], grad[b][c][i / count][i % count]);
  }
}

static dim3 blocks(int64_t threads, int64_t batch) {
  return dim3((threads + kThreads - 1) / kThreads, batch);
}

// Launches in functions: a comma in <<<...>>> would end THO_DISPATCH_V2's argument.
template <typename T>
static void farthest_of(const Tensor& xyz, const Tensor& nearest, const Tensor& index) {
  farthest_kernel<T><<<xyz.size(0), kThreads, 0, current_stream(xyz)>>>(
      read<Accessor, T, 3>(small(xyz)), write<Accessor, T, 2>(small(nearest)),
      write<Accessor, int, 2>(small(index)));
}

template <typename T>
static void ball_of(const Tensor& xyz, const Tensor& centers, T radius, const Tensor& index) {
  const dim3 grid = blocks(centers.size(1), centers.size(0));
  ball_kernel<T><<<grid, kThreads, 0, current_stream(xyz)>>>(
      read<Accessor, T, 3>(small(xyz)), read<Accessor, T, 3>(small(centers)), radius,
      write<Accessor, int, 3>(small(index)));
}

template <typename T>
static void nearest_of(const Tensor& xyz, const Tensor& centers, const Tensor& distance,
                       const Tensor& index) {
  const dim3 grid = blocks(centers.size(1), centers.size(0));
  nearest_kernel<T><<<grid, kThreads, 0, current_stream(xyz)>>>(
      read<Accessor, T, 3>(small(xyz)), read<Accessor, T, 3>(small(centers)),
      write<Accessor, T, 3>(small(distance)), write<Accessor, int, 3>(small(index)));
}

template <typename T>
static void group_of(const Tensor& features, const Tensor& index, const Tensor& y) {
  const dim3 grid = blocks(index.size(1) * index.size(2), index.size(0));
  group_kernel<T><<<grid, kThreads, 0, current_stream(features)>>>(
      read<Accessor, T, 3>(small(features)), read<Accessor, int, 3>(small(index)),
      write<Accessor, T, 4>(small(y)));
}

template <typename T>
static void group_backward_of(const Tensor& grad, const Tensor& index, const Tensor& sums) {
  const dim3 grid = blocks(index.size(1) * index.size(2), index.size(0));
  group_backward_kernel<T><<<grid, kThreads, 0, current_stream(grad)>>>(
      read<Accessor, T, 4>(small(grad)), read<Accessor, int, 3>(small(index)),
      write<Accessor, T, 3>(small(sums)));
}

Tensor farthest_cuda(const Tensor& xyz, int64_t count) {
  const torch::stable::accelerator::DeviceGuard guard(xyz.get_device_index());
  const Tensor index = torch::stable::new_zeros(xyz, {xyz.size(0), count}, ScalarType::Int);
  const Tensor nearest = torch::stable::full({xyz.size(0), xyz.size(1)}, INFINITY,
                                             xyz.scalar_type(), std::nullopt, xyz.device());
  if (index.numel() == 0) return index;
  THO_DISPATCH_V2(xyz.scalar_type(), "farthest",
                  AT_WRAP([&] { farthest_of<scalar_t>(xyz, nearest, index); }),
                  AT_EXPAND(AT_FLOATING_TYPES));
  check_launch();
  return index;
}

Tensor ball_cuda(const Tensor& xyz, const Tensor& centers, double radius, int64_t count) {
  const torch::stable::accelerator::DeviceGuard guard(xyz.get_device_index());
  const Tensor index =
      torch::stable::new_empty(xyz, {centers.size(0), centers.size(1), count}, ScalarType::Int);
  if (index.numel() == 0) return index;
  THO_DISPATCH_V2(xyz.scalar_type(), "ball",
                  AT_WRAP([&] { ball_of<scalar_t>(xyz, centers, radius, index); }),
                  AT_EXPAND(AT_FLOATING_TYPES));
  check_launch();
  return index;
}

std::tuple<Tensor, Tensor> nearest_cuda(const Tensor& xyz, const Tensor& centers) {
  const torch::stable::accelerator::DeviceGuard guard(xyz.get_device_index());
  const Tensor distance = torch::stable::empty_like(centers);
  const Tensor index = torch::stable::new_empty(xyz, distance.sizes(), ScalarType::Int);
  if (index.numel() == 0) return {distance, index};
  THO_DISPATCH_V2(xyz.scalar_type(), "nearest",
                  AT_WRAP([&] { nearest_of<scalar_t>(xyz, centers, distance, index); }),
                  AT_EXPAND(AT_FLOATING_TYPES));
  check_launch();
  return {distance, index};
}

Tensor group_cuda(const Tensor& features, const Tensor& index) {
  const torch::stable::accelerator::DeviceGuard guard(features.get_device_index());
  const Tensor y = torch::stable::new_empty(
      features, {features.size(0), features.size(1), index.size(1), index.size(2)});
  if (y.numel() == 0) return y;
  THO_DISPATCH_V2(features.scalar_type(), "group",
                  AT_WRAP([&] { group_of<scalar_t>(features, index, y); }),
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half);
  check_launch();
  return y;
}

Tensor group_backward_cuda(const Tensor& grad, const Tensor& index, int64_t n) {
  const torch::stable::accelerator::DeviceGuard guard(grad.get_device_index());
  const Tensor sums = torch::stable::new_zeros(grad, {grad.size(0), grad.size(1), n});
  if (grad.numel() == 0) return sums;
  THO_DISPATCH_V2(grad.scalar_type(), "group_backward",
                  AT_WRAP([&] { group_backward_of<scalar_t>(grad, index, sums); }),
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half);
  check_launch();
  return sums;
}
