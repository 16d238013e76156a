// The steps of docs/12_int4_linear.md before the operator, in bfloat16. Step 1 reads codes row by
// row: word [n, k / 8], column 2 i + j of a word as code 4 j + i. The others read quantize()'s
// order. From step 3 on they are the operator's kernels in other shapes than plan.h would choose.
#include "few_rows.cuh"
#include "int4_linear.h"
#include "plan.h"

using T = __nv_bfloat16;
using namespace four_bit;

// A warp computes one output at a time: each lane loads 16 bytes of codes, converts them, and
// multiplies.
template <int M>
__global__ void dot_products(Problem<T> p) {
  const int n = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  float sums[M] = {};
  for (int at = lane; at < p.k / 32; at += 32) {
    const Words found = p.codes[n * static_cast<int64_t>(p.k / 32) + at];
    const int64_t affine = at / 4 * static_cast<int64_t>(p.n) + n;
    const float scale = __bfloat162float(p.scale[affine]), zero = p.zero[affine];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const auto* x = reinterpret_cast<const __nv_bfloat162*>(p.x + m * p.k) + at * 16;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const uint32_t word = found.at[i / 4] >> i % 4 * 4;
        const float2 pair = Half<T>::floats(x[i]);
        sum += (int(word & 15) - zero) * pair.x + (int(word >> 16 & 15) - zero) * pair.y;
      }
      sums[m] += scale * sum;
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int other = 16; other; other /= 2) sums[m] += __shfl_xor_sync(~0u, sums[m], other);
    if (lane == 0) p.y[m * p.n + n] = __float2bfloat16(sums[m]);
  }
}

// Tensor cores. The 8 warps of a block share K; each loads its codes where it needs them.
template <int NT>
__global__ void tensor_cores(Problem<T> p) {
  __shared__ float all[8][NT * 8][kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int row = blockIdx.x * kTile + 2 * g;
  float sums[NT][4] = {};
  for (int chunk = warp; chunk < p.k / 64; chunk += 8) {
    const Words found =
        p.codes[(chunk * static_cast<int64_t>(p.n / kTile) + blockIdx.x) * 32 + lane];
    const int64_t affine = chunk / 2 * static_cast<int64_t>(p.n) + row;
    for (int j = 0; j < 4; ++j) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) {
        const auto zero = magic_pair<T>(p.zero[affine + i % 2]);
        const auto code = __hsub2(bits<__nv_bfloat162>(two_codes<T>(found.at[j], i)), zero);
        a[i] = bits<uint32_t>(__hmul2(code, __bfloat162bfloat162(p.scale[affine + i % 2])));
      }
      for (int i = 0; i < NT; ++i) {
        const T* x = p.x + (i * 8 + g) * p.k + chunk * 64 + j * 16 + t * 2;
        const bool is_row = i * 8 + g < p.batch;
        multiply<T>(sums[i], a, is_row ? *reinterpret_cast<const uint32_t*>(x) : 0,
                    is_row ? *reinterpret_cast<const uint32_t*>(x + 8) : 0);
      }
    }
  }
  for (int i = 0; i < NT * 4; ++i)
    all[warp][i / 4 * 8 + 2 * t + i % 2][2 * g + i % 4 / 2] = sums[i / 4][i % 4];
  __syncthreads();
  for (int e = threadIdx.x; e < p.batch * kTile; e += 256) {
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += all[i][e / kTile][e % kTile];
    p.y[e / kTile * p.n + blockIdx.x * kTile + e % kTile] = __float2bfloat16(sum);
  }
}

// Steps 1 and 2 are above; later ones say the shape, and how many blocks share K.
extern "C" const char* launch_step(int step, void* y, const void* x, const void* codes,
                                   const void* scale, const void* zero, int batch, int n, int k,
                                   int shape, int cluster, cudaStream_t stream) {
  Int4Call call = {codes, scale, zero, n, k, false, false, y, x, nullptr, batch};
  if (step > 2) return launch_plan(call, 0, {shape, cluster, batch, 0}, stream);
  const Problem<T> p = {static_cast<T*>(y),
                        static_cast<const T*>(x),
                        static_cast<const Words*>(codes),
                        static_cast<const T*>(scale),
                        static_cast<const uint8_t*>(zero),
                        nullptr,
                        batch,
                        n,
                        k,
                        k / kGroup,
                        false};
  if (step == 1 && batch == 1) dot_products<1><<<n / 8, 256, 0, stream>>>(p);
  if (step == 1 && batch == 16) dot_products<16><<<n / 8, 256, 0, stream>>>(p);
  if (step == 2) tensor_cores<2><<<n / kTile, 256, 0, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
