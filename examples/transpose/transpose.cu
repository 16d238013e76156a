// y[column][row] = x[row][column], from the plainest kernel to one as fast as a copy.
// docs/10_transpose.md. A block takes one tile of x. Nothing is computed, so T is any type of 4
// bytes or of 2.
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
template <typename T>
__global__ void four_each(T* y, const T* x, int64_t height, int64_t width, int across) {
  __shared__ T tile[32][32 + 4 / sizeof(T)];
  const int64_t top = int64_t(blockIdx.x / across) * 32, left = int64_t(blockIdx.x % across) * 32;
  const int j = threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = threadIdx.y + 8 * k;
    if (top + i < height && left + j < width) tile[i][j] = x[(top + i) * width + left + j];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = threadIdx.y + 8 * k;
    if (left + i < width && top + j < height) y[(left + i) * height + top + j] = tile[j][i];
  }
}

// 5. Larger tiles, no conditions where the whole tile is inside of x, and always words of 4 bytes.
template <typename T>
__global__ void large_tile(T* y, const T* x, int64_t height, int64_t width, int across) {
  constexpr int kWide = 4 / sizeof(T), kSide = 64 * kWide, kStep = kSide / 16;
  __shared__ alignas(4) T tile[kSide][kSide + kWide];
  const int64_t top = int64_t(blockIdx.x / across) * kSide;
  const int64_t left = int64_t(blockIdx.x % across) * kSide;
  const int j = threadIdx.x * kWide;
  if (top + kSide > height || left + kSide > width) {  // at an edge: as kernel 1
    for (int64_t row = top + threadIdx.y; row < min(top + kSide, height); row += kStep) {
      for (int64_t column = left + threadIdx.x; column < min(left + kSide, width); column += 64) {
        y[column * height + row] = x[row * width + column];
      }
    }
    return;  // the whole block
  }
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const int i = threadIdx.y + kStep * k;
    const T* from = x + (top + i) * width + left + j;
    *reinterpret_cast<uint32_t*>(&tile[i][j]) = *reinterpret_cast<const uint32_t*>(from);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const int i = threadIdx.y + kStep * k;
    uint32_t word = tile[j][i];
    if (kWide == 2) word |= static_cast<uint32_t>(tile[j + 1][i]) << 16;
    *reinterpret_cast<uint32_t*>(y + (left + i) * height + top + j) = word;
  }
}

template <typename T>
const char* launch(int64_t rung, T* y, const T* x, int64_t height, int64_t width,
                   cudaStream_t stream) {
  constexpr int kPad = 4 / sizeof(T);  // 4 bytes: one bank
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y);
  if (rung == 5 && (height % kPad || width % kPad || addresses % 4)) rung = 4;  // no whole words
  const int side = rung == 5 ? 64 * kPad : 32;
  const int64_t across = (width + side - 1) / side, down = (height + side - 1) / side;
  if (across * down == 0) return nullptr;  // a grid of no blocks is an error
  if (across * down > INT32_MAX) return "more tiles than a grid can have blocks";
  const unsigned blocks = static_cast<unsigned>(across * down);
  const dim3 square(32, 32), low(32, 8), wide(64, side / 16);  // the threads of a block
  if (rung == 1) one_each<<<blocks, square, 0, stream>>>(y, x, height, width, across);
  if (rung == 2) through_tile<T, 0><<<blocks, square, 0, stream>>>(y, x, height, width, across);
  if (rung == 3) through_tile<T, kPad><<<blocks, square, 0, stream>>>(y, x, height, width, across);
  if (rung == 4) four_each<<<blocks, low, 0, stream>>>(y, x, height, width, across);
  if (rung == 5) large_tile<<<blocks, wide, 0, stream>>>(y, x, height, width, across);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" const char* launch_4_bytes(int64_t rung, uint32_t* y, const uint32_t* x, int64_t height,
                                      int64_t width, cudaStream_t stream) {
  return launch(rung, y, x, height, width, stream);
}

extern "C" const char* launch_2_bytes(int64_t rung, uint16_t* y, const uint16_t* x, int64_t height,
                                      int64_t width, cudaStream_t stream) {
  return launch(rung, y, x, height, width, stream);
}
