// Kernels whose memory traffic is known by hand: strides, gathers, structs of 12 bytes, double and
// 16-byte accesses of shared memory, a stencil, a scan, lanes that part and meet again. Each takes
// 128 threads of one block, y of 4096 and x of 8192 floats. On a GPU, Nsight Compute counts the
// same: launch_counts() starts one by its number.
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

// 0. Every second element: half of each sector is of no use.
__global__ void every_second(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x * 2]; }

// 1. Each lane has a sector of its own.
__global__ void far_apart(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x * 33]; }

// 2. A warp's 128 bytes begin within a sector.
__global__ void one_further(float* y, const float* x) { y[threadIdx.x + 1] = x[threadIdx.x + 1]; }

// 3. A gather.
__global__ void gather(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x * 37 % 1024]; }

// 4. All lanes read one element, or eight lanes do.
__global__ void broadcast(float* y, const float* x) { y[threadIdx.x] = x[64] + x[threadIdx.x / 8]; }

// 5. A struct of 12 bytes is three loads.
struct Three {
  float a, b, c;
};
__global__ void structs_of_12(float* y, const float* x) {
  const Three three = reinterpret_cast<const Three*>(x)[threadIdx.x];
  y[threadIdx.x] = three.a + three.b * three.c;
}

// 6. 16 bytes per lane.
__global__ void vectors(float* y, const float* x) {
  float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
  v.x += v.w;
  reinterpret_cast<float4*>(y)[threadIdx.x] = v;
}

// 7. Two halves are one access of 4 bytes.
__global__ void pairs(float* y, const float* x) {
  const __half2 a = reinterpret_cast<const __half2*>(x)[threadIdx.x];
  reinterpret_cast<__half2*>(y)[threadIdx.x] = __hadd2(a, a);
}

// 8. double in shared memory: neighbours, then every second one.
__global__ void doubles(float* y, const float* x) {
  __shared__ double tile[256];
  tile[threadIdx.x] = x[threadIdx.x];
  tile[threadIdx.x + 128] = 1;
  __syncthreads();
  y[threadIdx.x] = float(tile[threadIdx.x ^ 1] + tile[threadIdx.x * 2]);
}

// 9. 16 bytes in shared memory: neighbours, then all lanes in the same four banks.
__global__ void quads(float* y, const float* x) {
  __shared__ float4 tile[128];
  tile[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
  __syncthreads();
  const float4 a = tile[threadIdx.x ^ 1], b = tile[threadIdx.x * 8 % 128];
  y[threadIdx.x] = a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// 10. Columns of a tile: all 32 lanes in one bank; then with rows of 33.
__global__ void columns(float* y, const float* x) {
  __shared__ float tile[32][32], padded[32][33];
  for (int row = threadIdx.x / 32; row < 32; row += 4) {
    tile[row][threadIdx.x % 32] = x[row * 32 + threadIdx.x % 32];
    padded[row][threadIdx.x % 32] = 1;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  y[threadIdx.x] = tile[lane][warp] + padded[lane][warp];
}

// 11. A stencil of three points.
__global__ void stencil(float* y, const float* x) {
  __shared__ float tile[130];
  const int i = threadIdx.x;
  tile[i + 1] = x[i + 1];
  if (i == 0) tile[0] = x[0];
  if (i == 127) tile[129] = x[129];
  __syncthreads();
  y[i] = tile[i] + tile[i + 1] + tile[i + 2];
}

// 12. An inclusive scan by doubling distances.
__global__ void scan(float* y, const float* x) {
  __shared__ float tile[2][128];
  const int i = threadIdx.x;
  int from = 0;
  tile[0][i] = x[i];
  __syncthreads();
#pragma unroll 1
  for (int distance = 1; distance < 128; distance *= 2) {
    float sum = tile[from][i];
    if (i >= distance) sum += tile[from][i - distance];
    tile[1 - from][i] = sum;
    from = 1 - from;
    __syncthreads();
  }
  y[i] = tile[from][i];
}

// 13. Other lanes in each turn of a loop: a request per turn.
__global__ void some_lanes_per_turn(float* y, const float* x) {
  float sum = 0;
#pragma unroll 1
  for (int turn = 0; turn < 8; ++turn) {
    if ((threadIdx.x + turn) % 4 == 0) sum += x[turn * 128 + threadIdx.x];
  }
  y[threadIdx.x] = sum;
}

// 14. Loops of other lengths within a loop: the lanes meet behind the inner one.
__global__ void loops_of_other_lengths(float* y, const float* x) {
  float sum = 0;
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
#pragma unroll 1
    for (int i = 0; i < threadIdx.x % 4; ++i) sum += x[i * 1024 + threadIdx.x];
    sum += x[4096 + turn * 128 + threadIdx.x];
  }
  y[threadIdx.x] = sum;
}

// 15. A function that is called from two places, by other lanes.
__device__ __noinline__ float load_two(const float* x) { return x[0] + x[1024]; }
__global__ void calls(float* y, const float* x) {
  float sum;
  if (threadIdx.x % 2) {
    sum = load_two(x + threadIdx.x);
  } else {
    sum = 2 * load_two(x + threadIdx.x);
  }
  y[threadIdx.x] = sum;
}

// 16. Copies of 16 bytes to shared memory.
__global__ void copies(float* y, const float* x) {
  __shared__ float4 tile[128];
  __pipeline_memcpy_async(&tile[threadIdx.x], x + threadIdx.x * 4, 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  y[threadIdx.x] = tile[threadIdx.x].x;
}

// 17. Atomic operations.
__global__ void atomics(float* y, const float* x) {
  __shared__ int count[32];
  if (threadIdx.x < 32) count[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&count[threadIdx.x % 32], 1);
  atomicAdd(y + threadIdx.x, x[threadIdx.x]);
}

// 18. Bytes: 32 lanes share a sector.
__global__ void bytes(float* y, const float* x) {
  reinterpret_cast<uint8_t*>(y)[threadIdx.x] = reinterpret_cast<const uint8_t*>(x)[threadIdx.x];
}

// 19. Rows of a matrix with 100 columns, one per thread.
__global__ void rows(float* y, const float* x) {
  if (threadIdx.x >= 40) return;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 100; ++i) sum += x[threadIdx.x * 100 + i];
  y[threadIdx.x] = sum;
}

// 20. Neighbours want the same 8 bytes, and the same 16.
__global__ void neighbours_share(float* y, const float* x) {
  __shared__ double doubles[128];
  __shared__ float4 quads[128];
  doubles[threadIdx.x] = 1;
  quads[threadIdx.x] = make_float4(1, 2, 3, 4);
  __syncthreads();
  const float4 quad = quads[threadIdx.x / 2];
  y[threadIdx.x] =
      x[threadIdx.x] + float(doubles[threadIdx.x / 2]) + quad.x * quad.y * quad.z * quad.w;
}

// 21. More steps than a lane takes in one turn, and not as many for all lanes.
__global__ void long_loop(float* y, const float* x) {
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 3000; ++i) {
    sum += x[i % 64 * 128 + threadIdx.x];
    if (threadIdx.x % 2 == 1) {
      sum += x[i];
      sum *= x[i + 2000];
    }
  }
  y[threadIdx.x] = sum;
}

using Kernel = void(float*, const float*);
Kernel* const kKernels[] = {every_second,
                            far_apart,
                            one_further,
                            gather,
                            broadcast,
                            structs_of_12,
                            vectors,
                            pairs,
                            doubles,
                            quads,
                            columns,
                            stencil,
                            scan,
                            some_lanes_per_turn,
                            loops_of_other_lengths,
                            calls,
                            copies,
                            atomics,
                            bytes,
                            rows,
                            neighbours_share,
                            long_loop};

}  // namespace

extern "C" const char* launch_counts(int number, float* y, const float* x, cudaStream_t stream) {
  if (number < 0 || number >= int(sizeof(kKernels) / sizeof(kKernels[0]))) return "no such kernel";
  kKernels[number]<<<1, 128, 0, stream>>>(y, x);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
