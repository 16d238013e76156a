// y[column][row] = x[row][column], from the plainest kernel to one as fast as a copy.
// docs/transpose.md. A block takes one tile of x. Nothing is computed, so T is any type of 4 bytes
// or of 2.
#include <cuda_runtime.h>
#include <stdint.h>

// 1. One thread per element. Neighbours read neighbours, but write far from each other.
template <typename T>
__global__ void one_each(T* y, const T* x, int64_t height, int64_t width, int across) {
  const int64_t row = int64_t(blockIdx.x / across) * 32 + threadIdx.y;
  const int64_t column = int64_t(blockIdx.x % across) * 32 + threadIdx.x;
  if (row < height && column < width) y[column * height + row] = x[row * width + column];
}

// 2. The tile turns in shared memory: neighbours write neighbours, too.
// 3. The same with kPad elements behind each row of the tile, so that a column uses all banks.
template <typename T, int kPad>
__global__ void through_tile(T* y, const T* x, int64_t height, int64_t width, int across) {
  __shared__ T tile[32][32 + kPad];
  const int64_t top = int64_t(blockIdx.x / across) * 32, left = int64_t(blockIdx.x % across) * 32;
  const int i = threadIdx.y, j = threadIdx.x;
  if (top + i < height && left + j < width) tile[i][j] = x[(top + i) * width + left + j];
  __syncthreads();
  if (left + i < width && top + j < height) y[(left + i) * height + top + j] = tile[j][i];
}

// 4. A thread moves four elements: it starts four loads, and then waits once.
// 5. The same with tiles of 64 x 64: pieces of x and y are twice as long.
template <typename T, int kTile>
__global__ void four_each(T* y, const T* x, int64_t height, int64_t width, int across) {
  __shared__ T tile[kTile][kTile + 4 / sizeof(T)];
  const int64_t top = int64_t(blockIdx.x / across) * kTile;
  const int64_t left = int64_t(blockIdx.x % across) * kTile;
  const int j = threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = threadIdx.y + k * kTile / 4;
    if (top + i < height && left + j < width) tile[i][j] = x[(top + i) * width + left + j];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = threadIdx.y + k * kTile / 4;
    if (left + i < width && top + j < height) y[(left + i) * height + top + j] = tile[j][i];
  }
}

template <typename T>
const char* launch(int64_t rung, T* y, const T* x, int64_t height, int64_t width,
                   cudaStream_t stream) {
  constexpr int kPad = 4 / sizeof(T);  // 4 bytes: one bank
  const int side = rung == 5 ? 64 : 32;
  const int64_t across = (width + side - 1) / side, down = (height + side - 1) / side;
  if (across * down == 0) return nullptr;  // a grid of no blocks is an error
  if (across * down > INT32_MAX) return "more tiles than a grid can have blocks";
  const unsigned blocks = static_cast<unsigned>(across * down);
  const dim3 threads(side, rung <= 3 ? side : side / 4);
  switch (rung) {
    case 1:
      one_each<<<blocks, threads, 0, stream>>>(y, x, height, width, across);
      break;
    case 2:
      through_tile<T, 0><<<blocks, threads, 0, stream>>>(y, x, height, width, across);
      break;
    case 3:
      through_tile<T, kPad><<<blocks, threads, 0, stream>>>(y, x, height, width, across);
      break;
    case 4:
      four_each<T, 32><<<blocks, threads, 0, stream>>>(y, x, height, width, across);
      break;
    default:
      four_each<T, 64><<<blocks, threads, 0, stream>>>(y, x, height, width, across);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" const char* launch_float(int64_t rung, float* y, const float* x, int64_t height,
                                    int64_t width, cudaStream_t stream) {
  return launch(rung, y, x, height, width, stream);
}

// For bfloat16 and float16.
extern "C" const char* launch_half(int64_t rung, uint16_t* y, const uint16_t* x, int64_t height,
                                   int64_t width, cudaStream_t stream) {
  return launch(rung, y, x, height, width, stream);
}
