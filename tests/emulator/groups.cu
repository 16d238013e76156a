// Groups of threads: tiles of tiles, lanes with one label, a grid; and functions of one thread.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuComplex.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

__global__ void tiles_of_tiles(int* y) {  // of 64 threads
  const auto large = cg::tiled_partition<16>(cg::this_thread_block());
  const auto small = cg::tiled_partition<4>(large);
  const int first = small.shfl(int(threadIdx.x), 0);
  y[threadIdx.x] = first * 100 + int(small.meta_group_rank() * 10 + small.meta_group_size());
}

__global__ void labels(int* y) {  // of one warp
  const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  const auto third = cg::labeled_partition(warp, int(threadIdx.x % 3));
  const auto half = cg::binary_partition(warp, threadIdx.x >= 8);
  y[threadIdx.x] = int(third.thread_rank() * 10000 + third.size() * 100 + half.size());
  y[32 + threadIdx.x] = cg::reduce(third, int(threadIdx.x), cg::plus<int>());
}

__global__ void odd_lanes(int* y) {  // of one warp
  y[threadIdx.x] = 0;
  if (threadIdx.x % 2 == 0) return;
  const auto group = cg::coalesced_threads();
  const int lane = threadIdx.x, rank = group.thread_rank();
  const int before = group.shfl_up(lane, 2), after = group.shfl_down(lane, 1);
  const unsigned low = group.ballot(rank < 3), equal = group.match_any(rank / 4);
  y[threadIdx.x] = before * 10000 + after * 100 + int(low) + int(equal >> rank / 4 * 4 == 15);
}

__global__ void whole_grid(int* y) {
  const auto grid = cg::this_grid();
  if (threadIdx.x == 0)
    y[grid.block_rank()] =
        int(grid.num_blocks() * 100 + grid.dim_blocks().y * 10 + grid.block_index().x);
}

__global__ void of_one_thread(double* y) {
  if (threadIdx.x) return;
  double sine, cosine;
  sincospi(1e9 + 0.25, &sine, &cosine);
  const __half2 a = __floats2half2_rn(2, -3), b = __floats2half2_rn(0.25f, -3);
  const double found[] = {
      sine,
      cosine,
      sinpif(1000000.5f),
      rcbrt(8.0),
      norm3df(1, 2, 2),
      rnorm4df(1, 1, 1, 1),
      double(umax(3000000000u, 1u)),
      double(llmin(-5, 1)),
      double(__rhadd(2, 5)),
      double(__uhadd(4294967295u, 4294967293u)),
      double(__funnelshift_lc(7, 1, 40)),
      double(__funnelshift_rc(7, 9, 33)),
      __low2float(__hmul2_sat(a, b)),
      __high2float(__hadd2_sat(a, b)),
      __low2float(__heq2(a, b)),
      __high2float(__heq2(a, b)),
      double(__half2short_rn(__float2half(-2.5f))),
      __half2float(__hfma_relu(__low2half(a), __high2half(a), __low2half(b))),
      __half2float(__high2half(__lows2half2(a, b))),
  };
  for (int i = 0; i < int(sizeof(found) / sizeof(found[0])); ++i) y[i] = found[i];
}

// A class with a copy constructor of its own, which runs on the host.
struct View {
  int n;
  int* data;
  View(int n, int* data) : n(n), data(data) {}
  __host__ __device__ View(const View& other) : n(other.n), data(other.data) {}
};
__global__ void fill(View view, int value) {
  if (threadIdx.x < view.n) view.data[threadIdx.x] = value;
}
void launch_fill(int* data, int n) { fill<<<1, 32>>>(View(n, data), 7); }

__global__ void set_one(char* y, long long at) { y[at] = 1; }
void launch_set_one(char* y, long long at) { set_one<<<1, 1>>>(y, at); }

// A plain read before an atomic operation: harmless before atomicMax, and not before atomicAdd.
__global__ void push(int* count, int most) {
  if (*count < most) atomicAdd(count, 1);
}
__global__ void largest(int* most) {
  if (*most < int(threadIdx.x)) atomicMax(most, int(threadIdx.x));
}

__global__ void rotate(cuFloatComplex* z, int turns) {
  cuFloatComplex x = make_cuFloatComplex(3, 4), i = make_cuFloatComplex(0, 1);
  for (int turn = 0; turn < turns; ++turn) x = cuCmulf(x, i);
  z[0] = cuCdivf(cuCfmaf(x, cuConjf(i), x), i);
  z[1] = make_cuComplex(cuCabsf(x), cuCrealf(x) + cuCimagf(x));
}

__device__ int table[6];
cudaError_t rows_and_symbols(int* y, size_t pitch) {  // y: of 4 rows
  size_t bytes = 0;
  cudaGetSymbolSize(&bytes, table);

  int* rows = nullptr;
  cudaMalloc(&rows, 4 * 32);
  cudaMemset2D(rows, 32, 0, 32, 4);
  const cudaError_t error = cudaMemset2D(rows, pitch, 1, 8, 4);
  cudaMemcpy(y + 1, rows, 128, cudaMemcpyDeviceToHost);
  cudaFree(rows);
  cudaMemcpyFromSymbolAsync(y, table, 4, bytes - 4, cudaMemcpyDeviceToHost, 0);
  return error;
}
