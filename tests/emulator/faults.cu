// Kernels with one fault each, and behind each the same kernel without it. The line with the fault
// ends in `// FAULT name`; test_emulator_faults.py launches both.
#include <assert.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

// ---- Out of bounds.

__global__ void past_end_write(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = 1;  // FAULT past_end_write
}
__global__ void past_end_write_right(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 1;
}

__global__ void past_end_read(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float left = x[i];
  y[i] = left + x[i + 1];  // FAULT past_end_read
}
__global__ void past_end_read_right(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float left = x[i];
  y[i] = left + (i + 1 < n ? x[i + 1] : 0);
}

__global__ void before_begin(float* y, const float* x, int n) {
  const int i = threadIdx.x;
  if (i < n) y[i] = x[i - 1];  // FAULT before_begin
}
__global__ void before_begin_right(float* y, const float* x, int n) {
  const int i = threadIdx.x;
  if (i < n) y[i] = i > 0 ? x[i - 1] : 0;
}

// A vector of 16 bytes that begins inside and ends outside.
__global__ void vector_over_end(float* y, const float* x, int n) {
  const int i = threadIdx.x * 4;
  if (i < n) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);  // FAULT vector_over_end
    y[threadIdx.x] = v.x;
  }
}
__global__ void vector_over_end_right(float* y, const float* x, int n) {
  const int i = threadIdx.x * 4;
  if (i + 3 < n) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    y[threadIdx.x] = v.x;
  } else if (i < n) {
    y[threadIdx.x] = x[i];
  }
}

__global__ void memcpy_over_end(float* y, const float* x, int n) {
  float four[4];
  memcpy(four, x + threadIdx.x * 4, sizeof(four));  // FAULT memcpy_over_end
  y[threadIdx.x] = four[0] + four[3];
}
__global__ void memcpy_over_end_right(float* y, const float* x, int n) {
  float four[4] = {};
  const int left = n - threadIdx.x * 4;
  memcpy(four, x + threadIdx.x * 4, (left < 4 ? left : 4) * sizeof(float));
  y[threadIdx.x] = four[0] + four[3];
}

__device__ void store_at(float* to, int i, float x) {
  to[i] = x;  // FAULT shared_pointer
}
__global__ void shared_pointer(float* y, const float* x, int n) {
  __shared__ float tile[32], other[32];
  store_at(tile, threadIdx.x + 1, x[threadIdx.x]);
  other[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = tile[31 - threadIdx.x / 32] + other[0];
}
__device__ void store_right(float* to, int i, float x) { to[i] = x; }
__global__ void shared_pointer_right(float* y, const float* x, int n) {
  __shared__ float tile[32], other[32];
  store_right(tile, threadIdx.x, x[threadIdx.x]);
  other[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = tile[31 - threadIdx.x] + other[0];
}

// The address is inside of the array, in its next row.
__global__ void shared_row(float* y, const float* x, int n) {
  __shared__ float tile[4][8];
  const int row = threadIdx.x / 8, column = threadIdx.x % 8;
  tile[row][column] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[row % 3][column + 1];  // FAULT shared_row
}
__global__ void shared_row_right(float* y, const float* x, int n) {
  __shared__ float tile[4][8];
  const int row = threadIdx.x / 8, column = threadIdx.x % 8;
  tile[row][column] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[row % 3][(column + 1) % 8];
}

__global__ void local_array(float* y, const float* x, int n) {
  float four[4];
  for (int i = 0; i < n; ++i) four[i] = x[i];  // FAULT local_array
  y[threadIdx.x] = four[threadIdx.x % 4];
}
__global__ void local_array_right(float* y, const float* x, int n) {
  float four[4];
  for (int i = 0; i < 4; ++i) four[i] = x[i];
  y[threadIdx.x] = four[threadIdx.x % 4];
}

__device__ float table[8];
__global__ void variable(float* y, const float* x, int n) {
  float* to = table;
  if (threadIdx.x < n) to[threadIdx.x] = x[threadIdx.x];  // FAULT variable
  y[threadIdx.x] = 0;
}
__global__ void variable_right(float* y, const float* x, int n) {
  float* to = table;
  if (threadIdx.x < 8) to[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = 0;
}

__global__ void dynamic_shared(float* y, const float* x, int n) {
  extern __shared__ float some[];
  some[threadIdx.x] = x[threadIdx.x];  // FAULT dynamic_shared
  __syncthreads();
  y[threadIdx.x] = some[blockDim.x - 1 - threadIdx.x];
}

__global__ void null_pointer(float* y, const float* x, int n) {
  const float* from = n > 1000 ? x : nullptr;
  y[threadIdx.x] = from[threadIdx.x];  // FAULT null_pointer
}
__global__ void null_pointer_right(float* y, const float* x, int n) {
  const float* from = n > 1000 ? nullptr : x;
  y[threadIdx.x] = from[threadIdx.x];
}

__global__ void misaligned(float* y, const float* x, int n) {
  const float4* from = reinterpret_cast<const float4*>(x + 1);
  y[threadIdx.x] = from[threadIdx.x % 4].y;  // FAULT misaligned
}
__global__ void misaligned_right(float* y, const float* x, int n) {
  const float4* from = reinterpret_cast<const float4*>(x + 4);
  y[threadIdx.x] = from[threadIdx.x % 4].y;
}

// ---- What nothing has written.

__global__ void uninitialized_result(float* y, const float* x, int n) {
  y[threadIdx.x] += x[threadIdx.x];  // FAULT uninitialized_result
}
__global__ void uninitialized_result_right(float* y, const float* x, int n) {
  y[threadIdx.x] = x[threadIdx.x];
}

__global__ void uninitialized_shared(float* y, const float* x, int n) {
  __shared__ float sums[33];
  sums[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = sums[threadIdx.x] + sums[32];  // FAULT uninitialized_shared
}
__global__ void uninitialized_shared_right(float* y, const float* x, int n) {
  __shared__ float sums[33];
  sums[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 0) sums[32] = 0;
  __syncthreads();
  y[threadIdx.x] = sums[threadIdx.x] + sums[32];
}

__global__ void never_written(float* y, const float* x, int n) {
  const int i = threadIdx.x;
  if (i < n - 1) y[i] = x[i];
}
__global__ void never_written_right(float* y, const float* x, int n) {
  const int i = threadIdx.x;
  if (i < n) y[i] = x[i];
}

// ---- Races.

__global__ void race_of_warps(float* y, const float* x, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = tile[63 - threadIdx.x];  // FAULT race_of_warps
}
__global__ void race_of_warps_right(float* y, const float* x, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}

// A fast warp fills the tile again while a slow one reads it.
__global__ void race_of_turns(float* y, const float* x, int n) {
  __shared__ float tile[64];
  float sum = 0;
  for (int turn = 0; turn < 2; ++turn) {
    tile[threadIdx.x] = x[threadIdx.x] + turn;  // FAULT race_of_turns
    __syncthreads();
    sum += tile[63 - threadIdx.x];
  }
  y[threadIdx.x] = sum;
}
__global__ void race_of_turns_right(float* y, const float* x, int n) {
  __shared__ float tile[64];
  float sum = 0;
  for (int turn = 0; turn < 2; ++turn) {
    tile[threadIdx.x] = x[threadIdx.x] + turn;
    __syncthreads();
    sum += tile[63 - threadIdx.x];
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}

__global__ void race_in_warp(float* y, const float* x, int n) {
  __shared__ float sums[32];
  const int lane = threadIdx.x;
  sums[lane] = x[lane];
  __syncwarp();
  for (int step = 16; step > 0; step /= 2) {
    if (lane < step) sums[lane] += sums[lane + step];  // FAULT race_in_warp
  }
  __syncwarp();
  y[lane] = sums[0];
}
__global__ void race_in_warp_right(float* y, const float* x, int n) {
  __shared__ float sums[32];
  const int lane = threadIdx.x;
  sums[lane] = x[lane];
  __syncwarp();
  for (int step = 16; step > 0; step /= 2) {
    if (lane < step) sums[lane] += sums[lane + step];
    __syncwarp();
  }
  y[lane] = sums[0];
}

// The way before Volta: volatile does not order lanes.
__global__ void volatile_in_warp(float* y, const float* x, int n) {
  __shared__ float sums[32];
  volatile float* all = sums;
  const int lane = threadIdx.x;
  all[lane] = x[lane];
  if (lane < 16) all[lane] += all[lane + 16];  // FAULT volatile_in_warp
  y[lane] = lane < 16 ? sums[lane] : 0;
}
__global__ void volatile_in_warp_right(float* y, const float* x, int n) {
  __shared__ float sums[32];
  const int lane = threadIdx.x;
  sums[lane] = x[lane];
  __syncwarp();
  if (lane < 16) sums[lane] += sums[lane + 16];
  y[lane] = lane < 16 ? sums[lane] : 0;
}

// A shuffle passes registers; it does not order memory.
__global__ void shuffle_orders_nothing(float* y, const float* x, int n) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  const float next = __shfl_sync(0xffffffff, x[threadIdx.x], (threadIdx.x + 1) % 32);
  y[threadIdx.x] = next + tile[31 - threadIdx.x];  // FAULT shuffle_orders_nothing
}
__global__ void shuffle_orders_nothing_right(float* y, const float* x, int n) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  const float next = __shfl_sync(0xffffffff, x[threadIdx.x], (threadIdx.x + 1) % 32);
  __syncwarp();
  y[threadIdx.x] = next + tile[31 - threadIdx.x];
}

__global__ void plain_counter(float* y, const float* x, int n) {
  if (x[threadIdx.x] > 0) ++*y;  // FAULT plain_counter
}
__global__ void plain_counter_right(float* y, const float* x, int n) {
  if (x[threadIdx.x] > 0) atomicAdd(y, 1);
}

__global__ void plain_histogram(float* y, const float* x, int n) {
  __shared__ int counts[4];
  if (threadIdx.x < 4) counts[threadIdx.x] = 0;
  __syncthreads();
  counts[threadIdx.x % 4]++;  // FAULT plain_histogram
  __syncthreads();
  if (threadIdx.x < 4) y[threadIdx.x] = counts[threadIdx.x];
}
__global__ void plain_histogram_right(float* y, const float* x, int n) {
  __shared__ int counts[4];
  if (threadIdx.x < 4) counts[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&counts[threadIdx.x % 4], 1);
  __syncthreads();
  if (threadIdx.x < 4) y[threadIdx.x] = counts[threadIdx.x];
}

// In place: a block reads what its neighbour may have replaced.
__global__ void race_of_blocks(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float left = i > 0 ? y[i - 1] : 0;
  __syncthreads();
  y[i] = left + x[i];  // FAULT race_of_blocks
}
__global__ void race_of_blocks_right(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float left = i > 0 ? x[i - 1] : 0;
  y[i] = left + x[i];
}

// The last block adds what the others have left.
__device__ unsigned ended;
__global__ void missing_fence(float* y, const float* x, int n) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    y[1 + blockIdx.x] = x[blockIdx.x];
    is_last = atomicAdd(&ended, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += y[1 + i];  // FAULT missing_fence
    y[0] = sum;
    ended = 0;
  }
}
__global__ void missing_fence_right(float* y, const float* x, int n) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    y[1 + blockIdx.x] = x[blockIdx.x];
    __threadfence();
    is_last = atomicAdd(&ended, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += y[1 + i];
    y[0] = sum;
    ended = 0;
  }
}

// ---- Barriers, shuffles, votes.

__global__ void barrier_in_branch(float* y, const float* x, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 50) __syncthreads();  // FAULT barrier_in_branch
  y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void barrier_in_branch_right(float* y, const float* x, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

__global__ void barrier_of_one_warp(float* y, const float* x, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 32) __syncthreads();  // FAULT barrier_of_one_warp
  y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void barrier_of_one_warp_right(float* y, const float* x, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 32) __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x];
}

__global__ void barriers_in_both_branches(float* y, const float* x, int n) {
  if (threadIdx.x % 2) {
    y[threadIdx.x] = x[threadIdx.x];
    __syncthreads();  // FAULT barriers_in_both_branches
  } else {
    y[threadIdx.x] = 2 * x[threadIdx.x];
    __syncthreads();
  }
}
__global__ void barriers_in_both_branches_right(float* y, const float* x, int n) {
  if (threadIdx.x / 32 % 2) {
    y[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
  } else {
    y[threadIdx.x] = 2 * x[threadIdx.x];
    __syncthreads();
  }
}

__global__ void shuffle_without_lanes(float* y, const float* x, int n) {
  float sum = x[threadIdx.x];
  if (threadIdx.x < 16) sum += __shfl_xor_sync(0xffffffff, sum, 8);  // FAULT shuffle_without_lanes
  y[threadIdx.x] = sum;
}
__global__ void shuffle_without_lanes_right(float* y, const float* x, int n) {
  float sum = x[threadIdx.x];
  if (threadIdx.x < 16) sum += __shfl_xor_sync(0x0000ffff, sum, 8);
  y[threadIdx.x] = sum;
}

__global__ void vote_without_lanes(float* y, const float* x, int n) {
  if (threadIdx.x >= 20) return;
  const bool any = __any_sync(0xffffffff, x[threadIdx.x] > 2);  // FAULT vote_without_lanes
  y[threadIdx.x] = any;
}
__global__ void vote_without_lanes_right(float* y, const float* x, int n) {
  const unsigned mask = __ballot_sync(0xffffffff, threadIdx.x < 20);
  if (threadIdx.x >= 20) return;
  const bool any = __any_sync(mask, x[threadIdx.x] > 2);
  y[threadIdx.x] = any;
}

__global__ void lanes_apart(float* y, const float* x, int n) {
  float sum = x[threadIdx.x];
  if (threadIdx.x % 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
  } else {
    __syncwarp();  // FAULT lanes_apart
  }
  y[threadIdx.x] = sum;
}
__global__ void lanes_apart_right(float* y, const float* x, int n) {
  float sum = x[threadIdx.x];
  if (threadIdx.x % 2) {
    sum += __shfl_xor_sync(0xaaaaaaaa, sum, 2);
  } else {
    __syncwarp(0x55555555);
  }
  y[threadIdx.x] = sum;
}

__global__ void mask_without_itself(float* y, const float* x, int n) {
  y[threadIdx.x] = __shfl_sync(0x7fffffff, x[threadIdx.x], 0);  // FAULT mask_without_itself
}
__global__ void mask_without_itself_right(float* y, const float* x, int n) {
  y[threadIdx.x] = __shfl_sync(0xffffffff, x[threadIdx.x], 0);
}

// A block of 48 threads: its second warp has 16 lanes.
__global__ void half_a_warp(float* y, const float* x, int n) {
  float sum = x[threadIdx.x];
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step);  // FAULT half_a_warp
  }
  y[threadIdx.x] = sum;
}
__global__ void half_a_warp_right(float* y, const float* x, int n) {
  const bool is_whole = threadIdx.x < 32;
  float sum = x[threadIdx.x];
  for (int step = is_whole ? 16 : 8; step > 0; step /= 2) {
    sum += __shfl_xor_sync(is_whole ? 0xffffffff : 0xffff, sum, step);
  }
  y[threadIdx.x] = sum;
}

// ---- Copies in the background.

__global__ void copy_without_wait(float* y, const float* x, int n) {
  __shared__ __align__(16) float tile[128];
  __pipeline_memcpy_async(&tile[threadIdx.x * 4], &x[threadIdx.x * 4], 16);
  __pipeline_commit();
  y[threadIdx.x] = tile[threadIdx.x * 4];  // FAULT copy_without_wait
}
__global__ void copy_without_wait_right(float* y, const float* x, int n) {
  __shared__ alignas(16) float tile[128];
  __pipeline_memcpy_async(&tile[threadIdx.x * 4], &x[threadIdx.x * 4], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  y[threadIdx.x] = tile[threadIdx.x * 4];
}

// Two batches are under way, and the wait is for the first one.
__global__ void copy_one_batch_early(float* y, const float* x, int n) {
  __shared__ float tile[2][32];
  for (int i = 0; i < 2; ++i) {
    __pipeline_memcpy_async(&tile[i][threadIdx.x], &x[i * 32 + threadIdx.x], 4);
    __pipeline_commit();
  }
  __pipeline_wait_prior(1);
  __syncwarp();
  y[threadIdx.x] = tile[1][31 - threadIdx.x];  // FAULT copy_one_batch_early
}
__global__ void copy_one_batch_early_right(float* y, const float* x, int n) {
  __shared__ float tile[2][32];
  for (int i = 0; i < 2; ++i) {
    __pipeline_memcpy_async(&tile[i][threadIdx.x], &x[i * 32 + threadIdx.x], 4);
    __pipeline_commit();
  }
  __pipeline_wait_prior(1);
  __syncwarp();
  y[threadIdx.x] = tile[0][31 - threadIdx.x];
}

// A thread waits for its own copies only.
__global__ void copy_of_others(float* y, const float* x, int n) {
  __shared__ float tile[64];
  __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  y[threadIdx.x] = tile[63 - threadIdx.x];  // FAULT copy_of_others
}
__global__ void copy_of_others_right(float* y, const float* x, int n) {
  __shared__ float tile[64];
  __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}

// ---- Launches, and what never ends.

__global__ void __launch_bounds__(64) launch_bounds(float* y, const float* x, int n) {
  y[threadIdx.x] = x[threadIdx.x];
}

__global__ void endless_flag(float* y, const float* x, int n) {
  const volatile float* flag = x;
  while (*flag < 1000) {  // FAULT endless_flag
  }
  y[threadIdx.x] = 1;
}
__global__ void endless_flag_right(float* y, const float* x, int n) {
  const volatile float* flag = x;
  while (*flag > 1000) {
  }
  y[threadIdx.x] = 1;
}

// unsigned: always >= 0. The compiler leaves an empty loop without a line, so the kernel's is
// named.
__global__ void endless_count(float* y, const float* x, int n) {  // FAULT endless_count
  float sum = 0;
  for (unsigned step = 16; step >= 0; step /= 2) sum += step;
  y[threadIdx.x] = sum;
}
__global__ void endless_count_right(float* y, const float* x, int n) {
  float sum = 0;
  for (unsigned step = 16; step > 0; step /= 2) sum += step;
  y[threadIdx.x] = sum;
}

__global__ void endless_barriers(float* y, const float* x, int n) {
  __shared__ float sums[64];
  sums[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (unsigned step = 32; step >= 0; step /= 2) {
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    __syncthreads();  // FAULT endless_barriers
  }
  y[threadIdx.x] = sums[0];
}
__global__ void endless_barriers_right(float* y, const float* x, int n) {
  __shared__ float sums[64];
  sums[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (unsigned step = 32; step > 0; step /= 2) {
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    __syncthreads();
  }
  y[threadIdx.x] = sums[0];
}

// A lock that no thread gives back.
__device__ int taken;
__global__ void endless_lock(float* y, const float* x, int n) {
  while (atomicCAS(&taken, 0, 1) != 0) {  // FAULT endless_lock
  }
  *y += 1;
}
__device__ int lock_of_right;
__global__ void endless_lock_right(float* y, const float* x, int n) {
  while (atomicCAS(&lock_of_right, 0, 1) != 0) {
  }
  *y += 1;
  __threadfence();
  atomicExch(&lock_of_right, 0);
}

__global__ void assertion(float* y, const float* x, int n) {
  assert(x[threadIdx.x] < 30);  // FAULT assertion
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void assertion_right(float* y, const float* x, int n) {
  assert(x[threadIdx.x] < 3000);
  y[threadIdx.x] = x[threadIdx.x];
}

__global__ void trap(float* y, const float* x, int n) {
  if (x[threadIdx.x] > 30) __trap();  // FAULT trap
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void trap_right(float* y, const float* x, int n) {
  if (x[threadIdx.x] > 3000) __trap();
  y[threadIdx.x] = x[threadIdx.x];
}

__device__ int depth_of(const float* x, int i) {
  volatile char local[1024];
  local[i % 1024] = char(x[0]);
  return x[0] >= 0 ? depth_of(x, i + 1) + local[0] : i;
}
__global__ void recursion(float* y, const float* x, int n) { y[threadIdx.x] = depth_of(x, 0); }

// An integer division by zero: a CPU stops, a GPU goes on.
__global__ void division(float* y, const float* x, int n) {
  y[threadIdx.x] = n / (n - int(x[1] * n));
}

// ---- Right code that looks dangerous: no alarm.

// Threads take tickets; a thread that holds the lock changes y.
__device__ int lock_word;
__global__ void lock_for_each_thread(float* y, const float* x, int n) {
  bool is_done = false;
  while (!is_done) {
    if (atomicCAS(&lock_word, 0, 1) == 0) {
      __threadfence();
      y[0] += x[threadIdx.x];
      __threadfence();
      atomicExch(&lock_word, 0);
      is_done = true;
    }
  }
}

// Each block waits for the one before it, in the order in which blocks have begun.
__device__ unsigned begun;
__device__ volatile int is_ready[8];
__device__ volatile float prefix[8];
__global__ void look_back(float* y, const float* x, int n) {
  __shared__ unsigned turn;
  __shared__ float before;
  if (threadIdx.x == 0) {
    turn = atomicAdd(&begun, 1);
    float sum = 0;
    for (int i = 0; i < blockDim.x; ++i) sum += x[turn * blockDim.x + i];
    before = 0;
    if (turn > 0) {
      while (is_ready[turn - 1] == 0) {
      }
      __threadfence();
      before = prefix[turn - 1];
    }
    prefix[turn] = before + sum;
    __threadfence();
    is_ready[turn] = 1;
  }
  __syncthreads();
  const int i = turn * blockDim.x + threadIdx.x;
  y[i] = before + x[i];
  if (turn == gridDim.x - 1 && threadIdx.x == 0) begun = 0;  // for the next launch
}

// One warp hands data to another by a flag.
__global__ void hand_over(float* y, const float* x, int n) {
  __shared__ float data[32];
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    data[threadIdx.x] = x[threadIdx.x];
    __threadfence_block();
    __syncwarp();
    if (threadIdx.x == 0) flag = 1;
  } else {
    while (flag == 0) {
    }
    __threadfence_block();
    y[threadIdx.x - 32] = data[63 - threadIdx.x];
  }
}

// The two halves of a warp go their own ways.
__global__ void halves_of_a_warp(float* y, const float* x, int n) {
  __shared__ float sums[32];
  const int lane = threadIdx.x;
  const unsigned mask = lane < 16 ? 0x0000ffff : 0xffff0000;
  sums[lane] = x[lane];
  __syncwarp(mask);
  for (int step = 8; step > 0; step /= 2) {
    const float other = lane % 16 < step ? sums[lane + step] : 0;
    __syncwarp(mask);
    sums[lane] += other;
    __syncwarp(mask);
  }
  y[lane] = sums[lane / 16 * 16];
}

// Bytes, halves and floats share one array.
__global__ void one_array_of_bytes(float* y, const float* x, int n) {
  __shared__ __align__(16) unsigned char memory[64 * 7];
  float* floats = reinterpret_cast<float*>(memory);
  short* shorts = reinterpret_cast<short*>(memory + 64 * 4);
  unsigned char* bytes = memory + 64 * 6;
  const int i = threadIdx.x, j = 63 - i;
  floats[i] = x[i];
  shorts[i] = short(2 * i);
  bytes[i] = i;
  __syncthreads();
  y[i] = floats[j] + shorts[j] + bytes[j];
}

// All threads that find something say the same: worth a note, but every order gives one result.
__global__ void same_value(float* y, const float* x, int n) {
  if (x[threadIdx.x] > 1) y[0] = 1;
}

// Whole warps end before a barrier: a GPU lets it pass. CUDA leaves it undefined, so it is a note.
__global__ void warps_end_early(float* y, const float* x, int n) {
  __shared__ float tile[64];
  if (threadIdx.x >= n) return;
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[n - 1 - threadIdx.x];
}

// ---- Launchers that touch tensors.

__global__ void fill(float* y, float value) { y[threadIdx.x] = value; }

// x is in the GPU's memory, and the launcher is not on the GPU.
void fill_with_first(float* y, const float* x) {
  const float first = x[0];  // FAULT fill_with_first
  fill<<<1, 32>>>(y, first);
}

// A reference for the CPU starts no kernel.
void fill_on_the_host(float* y, const float* x) {
  for (int i = 0; i < 32; ++i) y[i] = x[0];
}
