#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <ATen/cuda/Atomic.cuh>

#include "points.h"
#include "search.h"

template <typename T, int N>
using Accessor = at::PackedTensorAccessor32<T, N, at::RestrictPtrTraits>;

template <typename T, int N>
static Accessor<T, N> access(const at::Tensor& x) {
  return x.packed_accessor32<T, N, at::RestrictPtrTraits>();
}

constexpr int kThreads = 256;

// One block for each cloud. Each thread keeps the distances of every 256th point in global memory.
template <typename T>
__global__ void farthest_kernel(Accessor<T, 3> xyz, Accessor<T, 2> nearest,
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
__global__ void ball_kernel(Accessor<T, 3> xyz, Accessor<T, 3> centers, T radius,
                            Accessor<int, 3> index) {
  const int b = blockIdx.y, m = blockIdx.x * kThreads + threadIdx.x;
  if (m < centers.size(1)) find_in_ball<T>(xyz[b], centers[b][m], radius, index[b][m]);
}

template <typename T>
__global__ void nearest_kernel(Accessor<T, 3> xyz, Accessor<T, 3> centers, Accessor<T, 3> distance,
                               Accessor<int, 3> index) {
  const int b = blockIdx.y, m = blockIdx.x * kThreads + threadIdx.x;
  if (m < centers.size(1)) find_nearest<T>(xyz[b], centers[b][m], distance[b][m], index[b][m]);
}

template <typename T>
__global__ void group_kernel(Accessor<T, 3> features, Accessor<int, 3> index, Accessor<T, 4> y) {
  const int b = blockIdx.y, i = blockIdx.x * kThreads + threadIdx.x, count = index.size(2);
  if (i >= index.size(1) * count) return;
  const int point = index[b][i / count][i % count];
  CUDA_KERNEL_ASSERT(point >= 0 && point < features.size(2));
  for (int c = 0; c < y.size(1); ++c) y[b][c][i / count][i % count] = features[b][c][point];
}

// Several elements of grad may belong to one point, and their threads add at the same time.
template <typename T>
__global__ void group_backward_kernel(Accessor<T, 4> grad, Accessor<int, 3> index,
                                      Accessor<T, 3> sums) {
  const int b = blockIdx.y, i = blockIdx.x * kThreads + threadIdx.x, count = index.size(2);
  if (i >= index.size(1) * count) return;
  const int point = index[b][i / count][i % count];
  CUDA_KERNEL_ASSERT(point >= 0 && point < sums.size(2));
  for (int c = 0; c < grad.size(1); ++c) {
    gpuAtomicAdd(&sums[b][c][point], grad[b][c][i / count][i % count]);
  }
}

static dim3 blocks(int64_t threads, int64_t batch) {
  return dim3((threads + kThreads - 1) / kThreads, batch);
}

at::Tensor farthest_cuda(const at::Tensor& xyz, int64_t count) {
  const c10::cuda::CUDAGuard guard(xyz.device());
  const at::Tensor index = at::zeros({xyz.size(0), count}, xyz.options().dtype(at::kInt));
  const at::Tensor nearest = at::full({xyz.size(0), xyz.size(1)}, INFINITY, xyz.options());
  if (index.numel() == 0) return index;
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES(xyz.scalar_type(), "farthest", [&] {
    farthest_kernel<scalar_t><<<xyz.size(0), kThreads, 0, stream>>>(
        access<scalar_t, 3>(xyz), access<scalar_t, 2>(nearest), access<int, 2>(index));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return index;
}

at::Tensor ball_cuda(const at::Tensor& xyz, const at::Tensor& centers, double radius,
                     int64_t count) {
  const c10::cuda::CUDAGuard guard(xyz.device());
  const at::Tensor index =
      at::empty({centers.size(0), centers.size(1), count}, xyz.options().dtype(at::kInt));
  if (index.numel() == 0) return index;
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const dim3 grid = blocks(centers.size(1), centers.size(0));
  AT_DISPATCH_FLOATING_TYPES(xyz.scalar_type(), "ball", [&] {
    ball_kernel<scalar_t>
        <<<grid, kThreads, 0, stream>>>(access<scalar_t, 3>(xyz), access<scalar_t, 3>(centers),
                                        static_cast<scalar_t>(radius), access<int, 3>(index));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return index;
}

std::tuple<at::Tensor, at::Tensor> nearest_cuda(const at::Tensor& xyz, const at::Tensor& centers) {
  const c10::cuda::CUDAGuard guard(xyz.device());
  const at::Tensor distance = at::empty_like(centers);
  const at::Tensor index = at::empty(distance.sizes(), xyz.options().dtype(at::kInt));
  if (index.numel() == 0) return {distance, index};
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const dim3 grid = blocks(centers.size(1), centers.size(0));
  AT_DISPATCH_FLOATING_TYPES(xyz.scalar_type(), "nearest", [&] {
    nearest_kernel<scalar_t>
        <<<grid, kThreads, 0, stream>>>(access<scalar_t, 3>(xyz), access<scalar_t, 3>(centers),
                                        access<scalar_t, 3>(distance), access<int, 3>(index));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {distance, index};
}

at::Tensor group_cuda(const at::Tensor& features, const at::Tensor& index) {
  const c10::cuda::CUDAGuard guard(features.device());
  const at::Tensor y = at::empty({features.size(0), features.size(1), index.size(1), index.size(2)},
                                 features.options());
  if (y.numel() == 0) return y;
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const dim3 grid = blocks(index.size(1) * index.size(2), index.size(0));
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(features.scalar_type(), "group", [&] {
    group_kernel<scalar_t><<<grid, kThreads, 0, stream>>>(
        access<scalar_t, 3>(features), access<int, 3>(index), access<scalar_t, 4>(y));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

at::Tensor group_backward_cuda(const at::Tensor& grad, const at::Tensor& index, int64_t n) {
  const c10::cuda::CUDAGuard guard(grad.device());
  const at::Tensor sums = at::zeros({grad.size(0), grad.size(1), n}, grad.options());
  if (grad.numel() == 0) return sums;
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const dim3 grid = blocks(index.size(1) * index.size(2), index.size(0));
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(grad.scalar_type(), "group_backward", [&] {
    group_backward_kernel<scalar_t><<<grid, kThreads, 0, stream>>>(
        access<scalar_t, 4>(grad), access<int, 3>(index), access<scalar_t, 3>(sums));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return sums;
}
