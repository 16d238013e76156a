// The steps of docs/12_int4_linear.md, in bfloat16, from one thread per output to the operator's
// kernel. Steps 1 to 3 read codes row by row: word [n, k / 8], column 2 i + j of a word as code 4 j
// + i. The others read quantize()'s order.
#include "int4_linear_kernel.cuh"

using T = __nv_bfloat16;
using namespace four_bit;

// Steps 1 to 3: LANES threads per output, one or a warp, which load 16 bytes at a time; a code
// becomes a float by a conversion or by lop3.
template <int M, int LANES, bool LOP3>
__global__ void dot_products(Problem<T> p) {
  constexpr int kOutputs = LANES == 1 ? 64 : 8;  // of a block
  const int n = blockIdx.x * kOutputs + threadIdx.x / LANES, lane = threadIdx.x % LANES;
  float sums[M] = {};
  for (int at = lane; at < p.k / 32; at += LANES) {
    const Words found = p.codes[n * static_cast<int64_t>(p.k / 32) + at];
    const int64_t affine = at / 4 * static_cast<int64_t>(p.n) + n;
    const float scale = __bfloat162float(p.scale[affine]), zero = p.zero[affine];
    float2 weights[16];
    for (int i = 0; i < 16; ++i) {
      const uint32_t word = found.at[i / 4] >> i % 4 * 4;
      if (LOP3) {  // 128 + code in a bfloat16
        const uint32_t pair = (word & 0x000f000f) | 0x43004300;
        weights[i] = {__uint_as_float(pair << 16) - (128 + zero),
                      __uint_as_float(pair & 0xffff0000) - (128 + zero)};
      } else {
        weights[i] = {int(word & 15) - zero, int(word >> 16 & 15) - zero};
      }
    }
    for (int m = 0; m < M; ++m) {
      const Words* x = reinterpret_cast<const Words*>(p.x + m * p.k) + at * 4;
      float sum = 0;
      for (int i = 0; i < 4; ++i) {
        const Words eight = x[i];
        for (int j = 0; j < 4; ++j) {
          const float2 pair = Half<T>::floats(bits<__nv_bfloat162>(eight.at[j]));
          sum += weights[i * 4 + j].x * pair.x + weights[i * 4 + j].y * pair.y;
        }
      }
      sums[m] += scale * sum;
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int other = LANES / 2; other; other /= 2) sums[m] += __shfl_xor_sync(~0u, sums[m], other);
    if (lane == 0) p.y[m * p.n + n] = __float2bfloat16(sums[m]);
  }
}

// Steps 4 and 5: tensor cores. A warp computes 16 rows for NT * 8 rows of x: over all of K, or
// SPLIT warps share K.
template <int NT, int SPLIT>
__global__ void tensor_cores(Problem<T> p) {
  __shared__ float all[8][NT * 8][kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int tile = SPLIT == 1 ? blockIdx.x * 8 + warp : blockIdx.x, row = tile * kTile + 2 * g;
  float sums[NT][4] = {};
  for (int chunk = SPLIT == 1 ? 0 : warp; chunk < p.k / 64; chunk += SPLIT) {
    const Words found = p.codes[(tile * static_cast<int64_t>(p.k / 64) + chunk) * 32 + lane];
    const int64_t affine = chunk / 2 * static_cast<int64_t>(p.n) + row;
    for (int j = 0; j < 4; ++j) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) {
        const auto zero = magic_pair<T>(p.zero[affine + i % 2]);
        const auto code = __hsub2(bits<__nv_bfloat162>(two_codes<T>(found.at[j], i)), zero);
        a[i] = bits<uint32_t>(__hmul2(code, __bfloat162bfloat162(p.scale[affine + i % 2])));
      }
      for (int i = 0; i < NT; ++i) {
        uint2 x = {0, 0};
        if (i * 8 + g < p.batch) {
          x = *reinterpret_cast<const uint2*>(p.x + (i * 8 + g) * p.k + chunk * 64 + j / 2 * 32 +
                                              t * 8 + j % 2 * 4);
        }
        multiply<T>(sums[i], a, x.x, x.y);
      }
    }
  }
  for (int i = 0; i < NT * 4; ++i)
    all[warp][i / 4 * 8 + 2 * t + i % 2][2 * g + i % 4 / 2] = sums[i / 4][i % 4];
  __syncthreads();
  for (int e = threadIdx.x; e < p.batch * kTile * 8 / SPLIT; e += 256) {
    const int r = e % kTile, m = e / kTile % p.batch, which = e / kTile / p.batch;
    float sum = 0;
    for (int i = 0; i < SPLIT; ++i) sum += all[which + i][m][r];
    p.y[m * p.n + (SPLIT == 1 ? blockIdx.x * 8 + which : tile) * kTile + r] = __float2bfloat16(sum);
  }
}

// Step 6: copies ahead by cp.async, and 4 tiles of rows for each fragment of x: the operator's
// kernel in its plainest shape. Step 7, the operator, fits the shape to the sizes and starts while
// the kernel before ends.
template <int M>
const char* launch(int step, const Problem<T>& p, cudaStream_t stream) {
  constexpr int NT = (M + 7) / 8;
  if (step == 1) dot_products<M, 1, false><<<p.n / 64, 64, 0, stream>>>(p);
  if (step == 2) dot_products<M, 32, false><<<p.n / 8, 256, 0, stream>>>(p);
  if (step == 3) dot_products<M, 32, true><<<p.n / 8, 256, 0, stream>>>(p);
  if (step == 4) tensor_cores<NT, 1><<<p.n / 128, 256, 0, stream>>>(p);
  if (step == 5) tensor_cores<NT, 8><<<p.n / 16, 256, 0, stream>>>(p);
  if (step == 6) {
    using S = Shape<4, NT, 1, 8, 2, 1, 1>;
    const auto kernel = int4_linear<T, S>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared);
    kernel<<<p.n / S::kRows, S::kThreads, S::kShared, stream>>>(p);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" const char* launch_step(int step, T* y, const T* x, const Words* codes, const T* scale,
                                   const uint8_t* zero, int batch, int n, int k,
                                   cudaStream_t stream) {
  const Problem<T> p = {y, x, codes, scale, zero, nullptr, batch, n, k};
  return batch == 1 ? launch<1>(step, p, stream) : launch<16>(step, p, stream);
}
