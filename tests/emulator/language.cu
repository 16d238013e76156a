// The ways in which CUDA C++ is written: launches, shared memory, variables, barriers, atomics,
// numbers. Each launcher is one test of test_emulator_language.py.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

namespace cg = cooperative_groups;

// ---- Launches. Each adds 1 to y[place] once per thread of the first block.

template <typename A, typename B>
struct Pair {
  A first;
  B second;
};
struct Two {
  int place, more;
};

__global__ void one(int* y, int place) {
  if (blockIdx.x == 0) atomicAdd(y + place, 1);
}
template <typename T>
__global__ void of_type(int* y, int place, T = T()) {
  if (blockIdx.x == 0) atomicAdd(y + place, int(sizeof(T)));
}
template <int kA, int kB>
__global__ void of_numbers(int* y, int place) {
  if (blockIdx.x == 0) atomicAdd(y + place, kA * 10 + kB);
}
__global__ void of_struct(int* y, Two two, const int* nothing) {
  if (blockIdx.x == 0 && nothing == nullptr) atomicAdd(y + two.place, two.more);
}
template <typename F>
__global__ void of_function(int* y, int place, F f) {
  if (blockIdx.x == 0) atomicAdd(y + place, f(int(threadIdx.x)));
}
namespace inner {
namespace deep {
__global__ void one(int* y, int place) {
  if (blockIdx.x == 0) atomicAdd(y + place, 1);
}
}  // namespace deep
}  // namespace inner
struct Table {
  void (*kernel)(int*, int);
  static void launch(int* y, int place) { one<<<1, 4>>>(y, place); }
  void launch_own(int* y, int place) const { kernel<<<1, 4>>>(y, place); }
};
#define LAUNCH(kernel, threads, ...) kernel<<<1, threads>>>(__VA_ARGS__)
template <typename T>
void launch_in_template(int* y, int place) {
  of_type<Pair<T, Pair<T, T>>><<<1, 4>>>(y, place);
}
constexpr int larger(int a, int b) { return a > b ? a : b; }

extern "C" const char* launches(int* y, cudaStream_t stream) {
  int i = 0, n = 3;
  one<<<1, 4>>>(y, i++);                                                           // 0: 4
  one<<<dim3(2, 1), dim3{2, 2}, 0, stream>>>(y, i++);                              // 1: 4
  ::inner::deep::one<<<1, 4, 0>>>(y, i++);                                         // 2: 4
  inner::deep::one<<<larger(1, 2), (n < 4) ? 4 : 8>>>(y, i++);                     // 3: 4
  of_type<double><<<1, 4>>>(y, i++, 1.5);                                          // 4: 32
  of_type<Pair<int, Pair<int, int>>><<<1, std::max<int>(2, n + 1)>>>(y, i++, {});  // 5: 48
  of_numbers<1, 2><<<1, [] { return 4; }()>>>(y, i++);                             // 6: 48
  of_numbers<(2 > 1), larger(1, 2)><<<{1, 1, 1}, {2, 2}>>>(y, i++);                // 7: 48
  of_struct<<<1, 4>>>(y, {8, 5}, nullptr);                                         // 8: 20
  of_struct<<<1, 4>>>(y, Two{++i, 5}, 0);                                          // 9: 20
  ++i;
  of_function<<<1, 4>>>(y, i++, [n] __device__(int x) { return x + n; });  // 10: 0+1+2+3 + 12
  const auto kernel = n > 2 ? one : inner::deep::one;
  kernel<<<1, 4>>>(y, i++);  // 11: 4
  void (*const kernels[])(int*, int) = {one, inner::deep::one};
  kernels[n % 2]<<<1, 4>>>(y, i++);  // 12: 4
  const Table table = {one};
  table.kernel<<<1, 4>>>(y, i++);                      // 13: 4
  (&table)->kernel<<<1, 4>>>(y, i++);                  // 14: 4
  (n > 2 ? one : inner::deep::one)<<<1, 4>>>(y, i++);  // 15: 4
  Table::launch(y, i++);                               // 16: 4
  table.launch_own(y, i++);                            // 17: 4
  LAUNCH(one, 4, y, i++);                              // 18: 4
  LAUNCH((of_numbers<1, 2>), 4, y, i++);               // 19: 48
  launch_in_template<short>(y, i++);                   // 20: 24
  if (n > 2)
    one<<<1, 4>>>(y, i++);  // 21: 4
  else
    one<<<1, 8>>>(y, i++);
  for (int k = 0; k < 2; ++k) one<<<1, 2>>>(y, i);  // 22: 4
  [&] { one<<<1, 4>>>(y, ++i); }();                 // 23: 4
  ++i;
  one<<<1,             // a comment, with a comma
        4>>>(y, i++);  // 24: 4
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 4;
  cudaLaunchKernelEx(&config, one, y, i++);  // 25: 4
  void* arguments[] = {&y, &i};
  cudaLaunchKernel(one, dim3(1), dim3(4), arguments, 0, stream);  // 26: 4
  return i == 26 ? nullptr : "an argument was evaluated twice";
}

// ---- Shared memory.

template <typename T, int kN>
__device__ T turned(T x) {  // an array for each T and each kN
  __shared__ T all[kN];
  all[threadIdx.x] = x;
  __syncthreads();
  return all[kN - 1 - threadIdx.x];
}
__global__ void shared_arrays(int* y, const int* x) {
  __shared__ int a[64], b[2][32], *pointer, count;
  __shared__ __align__(16) char bytes[64];
  static __shared__ alignas(8) Two pairs[64];
  volatile __shared__ int flag;
  const int i = threadIdx.x;
  a[i] = x[i];
  b[i / 32][i % 32] = 2 * x[i];
  bytes[i] = char(i);
  pairs[i] = {i, 3 * i};
  if (i == 0) {
    pointer = a;
    count = 5;
    flag = 7;
  }
  __syncthreads();
  const auto read = [](int k) { return a[k] + b[k / 32][k % 32]; };  // captures nothing
  int sum = read(63 - i) + pointer[i] + count + flag + bytes[63 - i] + pairs[63 - i].more;
  if (i % 2 == 0) {
    __shared__ int a[32];  // another one
    a[i / 2] = i;
    __syncwarp(0x55555555);
    sum += a[i / 2 ^ 1];
  }
  y[i] = sum + turned<int, 64>(x[i]) + int(turned<short, 64>(short(i)));
}
extern __shared__ int dynamic[];
template <typename T>
__global__ void dynamic_shared(int* y, const int* x) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* numbers = reinterpret_cast<T*>(memory);
  numbers[threadIdx.x] = T(x[threadIdx.x]);
  __syncthreads();
  y[threadIdx.x] = int(numbers[blockDim.x - 1 - threadIdx.x]) + (sizeof(T) == 4 ? dynamic[0] : 0);
}
extern "C" const char* shared_memory(int* y, const int* x, int which, cudaStream_t stream) {
  if (which == 0) shared_arrays<<<2, 64, 0, stream>>>(y, x);
  if (which == 1) dynamic_shared<int><<<1, 64, 64 * sizeof(int), stream>>>(y, x);
  if (which == 2) dynamic_shared<short><<<1, 64, 64 * sizeof(short), stream>>>(y, x);
  if (which == 3) {
    const int bytes = 100 * 1024;
    cudaFuncSetAttribute(dynamic_shared<int>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    dynamic_shared<int><<<1, 64, bytes, stream>>>(y, x);
  }
  if (which == 4) dynamic_shared<short><<<1, 64, 100 * 1024, stream>>>(y, x);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// ---- Variables, memory of the launcher.

__constant__ int factors[4];
__device__ int total = 3, rest;
static __device__ int2 pair_of_device[2] = {{1, 2}, {3, 4}};
__global__ void variables(int* y, int* scratch) {
  scratch[threadIdx.x] = factors[threadIdx.x % 4] * total;
  atomicAdd(&rest, scratch[threadIdx.x]);
  y[threadIdx.x] = scratch[threadIdx.x] + pair_of_device[threadIdx.x % 2].y;
}
extern "C" const char* variables_and_memory(int* y) {
  const int host[4] = {1, 10, 100, 1000};
  int *scratch = nullptr, found = 0;
  if (cudaMalloc(&scratch, 32 * sizeof(int))) return "no memory";
  cudaMemset(scratch, 0, 32 * sizeof(int));
  cudaMemcpyToSymbol(factors, host, sizeof(host));
  cudaMemcpyToSymbol(rest, &found, sizeof(found));
  variables<<<1, 32>>>(y, scratch);
  cudaMemcpyFromSymbol(&found, rest, sizeof(found));
  cudaMemcpy(y + 32, scratch, 32 * sizeof(int), cudaMemcpyDeviceToDevice);
  if (cudaDeviceSynchronize() || cudaFree(scratch)) return "an error";
  return found == 8 * 1111 * 3 ? nullptr : "atomicAdd() of a variable is wrong";
}

// ---- Blocks of three dimensions, part of a warp, votes, counting barriers, groups.

__global__ void geometry(int* y) {
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  y[block * threads + thread] = lane == thread % warpSize ? block * 1000 + thread : -1;
}
extern "C" void three_dimensions(int* y) { geometry<<<dim3(2, 3, 2), dim3(3, 5, 4)>>>(y); }

__global__ void votes(int* y, const int* x) {
  const int i = threadIdx.x, lane = i % 32;
  int* to = y + i;
  *to = __ballot_sync(~0u, x[i] % 2) == 0xaaaaaaaa;
  *(to += 64) = __any_sync(~0u, lane == 7) + 2 * __all_sync(~0u, lane < 31);
  *(to += 64) = __popc(__match_any_sync(~0u, x[i] / 8));
  int is_same;
  *(to += 64) = __match_all_sync(~0u, i / 32, &is_same) == ~0u && is_same;
  *(to += 64) = __reduce_add_sync(~0u, x[i]) + __reduce_max_sync(~0u, -x[i]);
  *(to += 64) = __syncthreads_count(i < 40) + 100 * __syncthreads_and(i < 64) +
                1000 * __syncthreads_or(i < 0);
  *(to += 64) = i % 3 == 0 ? __popc(__activemask()) : 0;
  *(to += 64) =
      __shfl_up_sync(~0u, i, 1) + __shfl_down_sync(~0u, i, 1, 8) + __shfl_xor_sync(~0u, i, 16);
  *(to += 64) = int(__shfl_sync(~0u, double(i) / 2, 5, 16) * 2);
}
extern "C" void launch_votes(int* y, const int* x) { votes<<<1, 64>>>(y, x); }

__device__ int sum_of(cg::thread_block_tile<8> tile, int x) {
  for (int step = tile.size() / 2; step > 0; step /= 2) x += tile.shfl_down(x, step);
  return tile.shfl(x, 0);
}
__global__ void groups(int* y, const int* x) {
  const auto block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  const auto eight = cg::tiled_partition<8>(warp);
  const int i = block.thread_rank();
  y[i] = cg::reduce(warp, x[i], cg::plus<int>());
  y[i + 64] = sum_of(cg::tiled_partition<8>(block), x[i]) + int(eight.meta_group_rank());
  block.sync();
  if (i % 4 == 1) y[i + 128] = cg::coalesced_threads().size();
  cg::sync(block);
}
extern "C" void launch_groups(int* y, const int* x) { groups<<<1, 64>>>(y, x); }

__global__ void named_barrier(int* y, const int* x) {
  __shared__ int tile[64];
  if (threadIdx.x < 64) {  // the first two warps meet, the third goes on
    tile[threadIdx.x] = x[threadIdx.x];
    asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(64) : "memory");
    y[threadIdx.x] = tile[63 - threadIdx.x];
  } else {
    y[threadIdx.x] = -1;
  }
}
extern "C" void launch_named_barrier(int* y, const int* x) { named_barrier<<<1, 96>>>(y, x); }

// ---- Atomic operations.

__device__ float atomic_max(float* to, float x) {
  int* bits = reinterpret_cast<int*>(to);
  int old = *bits;
  while (__int_as_float(old) < x) {
    const int assumed = old;
    old = atomicCAS(bits, assumed, __float_as_int(x));
    if (old == assumed) break;
  }
  return __int_as_float(old);
}
__global__ void atomics(int* y, float* f, double* d, unsigned long long* u, __half2* h) {
  const int i = threadIdx.x;
  atomicAdd(y, i);
  atomicSub(y + 1, 1);
  atomicMax(y + 2, i);
  atomicMin(y + 3, -i);
  atomicOr(y + 4, 1 << i % 8);
  atomicAnd(y + 5, ~(1 << i % 4));
  atomicXor(y + 6, 1 << i % 3);
  atomicInc(reinterpret_cast<unsigned*>(y + 7), 9);
  atomicDec(reinterpret_cast<unsigned*>(y + 8), 5);
  if (atomicExch(y + 9, 1) == 0) atomicAdd(y + 10, 1);
  atomicAdd(f, 0.5f);
  atomic_max(f + 1, float(i * 7 % 32));
  atomicAdd(d, 0.25);
  atomicAdd(u, 1ull << 33);
  atomicAdd(h, __floats2half2_rn(1, 2));
}
extern "C" void launch_atomics(int* y, float* f, double* d, unsigned long long* u, __half2* h) {
  atomics<<<1, 32>>>(y, f, d, u, h);
}

// ---- Numbers.

__global__ void conversions(float* wide, uint16_t* narrow, const uint16_t* all, const float* x,
                            int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  wide[i] = __half2float(__ushort_as_half(all[i]));
  wide[i + n] = __bfloat162float(__ushort_as_bfloat16(all[i]));
  narrow[i] = __half_as_ushort(__float2half_rn(x[i]));
  narrow[i + n] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
  const __half a = __float2half(x[i]), b = __ushort_as_half(all[i]);
  narrow[i + 2 * n] = __half_as_ushort(__hadd(a, b));
  narrow[i + 3 * n] = __half_as_ushort(a * b);
}
extern "C" void launch_conversions(float* wide, uint16_t* narrow, const uint16_t* all,
                                   const float* x, int n) {
  conversions<<<(n + 255) / 256, 256>>>(wide, narrow, all, x, n);
}

__global__ void functions(float* y, const float* x) {
  const float a = x[threadIdx.x];
  const float results[] = {expf(a),
                           exp2f(a),
                           rsqrtf(a),
                           __expf(a),
                           fmaf(a, a, 1.f),
                           erff(a),
                           tanhf(a),
                           __logf(a),
                           sqrtf(a),
                           __fdividef(1, a),
                           fminf(a, 1),
                           float(max(2, 3l)),
                           fabsf(-a),
                           float(isnan(a)),
                           __saturatef(a),
                           float(__float2int_rn(a)),
                           float(__clz(1) + __popc(7) + __ffs(8)),
                           float(__byte_perm(0x03020100, 0, 0x3210) == 0x03020100),
                           float(__brev(1u) == 0x80000000),
                           float(__funnelshift_r(1, 1, 1) == 0x80000000),
                           powf(a, 2),
                           float(__mulhi(1 << 20, 1 << 20)),
                           __frcp_rn(a),
                           cospif(0),
                           float(__umulhi(~0u, 2)),
                           __ldg(x + threadIdx.x),
                           float(min(1u, 2u))};
  constexpr int kCount = sizeof(results) / sizeof(results[0]);
  for (int i = 0; i < kCount; ++i) __stcs(y + threadIdx.x * kCount + i, results[i]);
}
extern "C" void launch_functions(float* y, const float* x) { functions<<<1, 32>>>(y, x); }

// ---- Functions of the device: recursion, pointers, templates, constants.

__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ __forceinline__ int square(int x) { return x * x; }
__device__ __noinline__ int cube(int x) { return x * x * x; }
template <int... kNumbers>
__device__ constexpr int sum_of_numbers() {
  return (kNumbers + ...);
}
struct Shape {
  int sides;
  __device__ explicit Shape(int n) : sides(n) {}
  __host__ __device__ int operator()(int x) const { return sides * x; }
};
__global__ void calls(int* y) {
  constexpr int primes[] = {2, 3, 5, 7, 11, 13, 17, 19};
  static const int more[] = {1, 2, 4};
  const int i = threadIdx.x;
  int (*const which)(int) = i % 2 ? square : cube;
  const auto [low, high] = std::pair<int, int>{i, 2 * i};
  const std::array<int, 2> both = {low, high};
  y[i] = fibonacci(i % 10) + which(i) + primes[i % 8] + more[i % 3] + sum_of_numbers<1, 2, 3>() +
         Shape(4)(i) + both[1];
  if (i == 0) printf("block %d of %d\n", blockIdx.x, gridDim.x);
  if (clock64() < 0) y[i] = 0;
}
extern "C" void launch_calls(int* y) { calls<<<2, 32>>>(y); }

// ---- Parameters of a launcher: all kinds of numbers.

__global__ void numbers(double* y, double a, double b, double c, double d) {
  y[0] = a;
  y[1] = b;
  y[2] = c;
  y[3] = d;
}
enum class Color : int { kRed = 3 };
extern "C" int parameters(double* y, float a, double b, int8_t c, bool d, uint64_t e, Color f,
                          const Two& two) {
  numbers<<<1, 1>>>(y, a, b, c + d, double(e) + int(f) + two.more);
  return 42;
}

// ---- Declarations in all shapes.

template <typename T, int kN>
struct Box {
  using type = T;
  T x[kN];
};
__constant__ struct Settings {
  int a;
  float b;
} settings;
__device__ __constant__ float three_constants[3] = {4, 5, 6};
__device__ float2 with_braces{1, 2};
__device__ int one_of_two = 1, other_of_two[2] = {2, 3};
extern __device__ int defined_below;
__device__ int defined_below = 9;
constexpr __device__ float constants[] = {1, 2, 3};
__device__ auto twice(float x) -> float { return x * 2; }
template <typename T>
__global__ void shapes(float* y) {
  __shared__ Box<T, 4> boxes[2], other;
  __shared__ typename Box<T, 4>::type single, several[3];
  __shared__ struct {
    float a[32];
    int b;
  } unnamed;
  __shared__ float (*rows)[4], grid[4 << 1][(8 >> 1) > 3 ? 4 : 2];
  __shared__ std::array<std::array<float, 2>, 2> nested;
  if (threadIdx.x == 0) {
    boxes[1].x[3] = 1;
    other.x[0] = 2;
    single = several[2] = 3;
    unnamed.a[31] = 4;
    unnamed.b = 5;
    grid[7][3] = 6;
    rows = grid;
    nested[1][1] = 7;
  }
  __syncthreads();
  y[threadIdx.x] = boxes[1].x[3] + other.x[0] + single + several[2] + unnamed.a[31] + unnamed.b +
                   rows[7][3] + nested[1][1];
}
__global__ void shapes_of_variables(float* y) {
  float sum = 0;
  _Pragma("unroll") for (int i = 0; i < 4; ++i) sum += max(i, 2);  // 9
  y[threadIdx.x] = sum + constants[1] + three_constants[2] + with_braces.y + other_of_two[1] +
                   defined_below + settings.a + twice(1) + one_of_two;
}
static __launch_bounds__(64) __global__ void static_kernel(float* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void __launch_bounds__(64, 2) c_kernel(float* y) { y[threadIdx.x] += 1; }
namespace {
__global__ void hidden_kernel(float* y) { y[threadIdx.x] += 1; }
}  // namespace
extern "C" cudaError_t launch_shapes(float* y) {
  const char* text = "kernel<<<1, 2>>>(x)";  // and __shared__ in a comment: <<<1, 2>>>
  const char* raw = R"(asm("mov") <<<)";
  const char quote = '"', apostrophe = '\'';
  const Settings ours = {5, 0};
  if (cudaMemcpyToSymbol(settings, &ours, sizeof(ours))) return cudaErrorUnknown;
  shapes<float><<<1, 32>>>(y), shapes<int><<<1, 32>>>(y + 32);
  shapes_of_variables<<<1, 32>>>(y + 64);
  text[0] == 'k' && raw[0] == 'a' && quote != apostrophe ? static_kernel<<<1, 32>>>(y + 96)
                                                         : hidden_kernel<<<1, 64>>>(y);
  c_kernel<<<1, 32>>>(y + 96);
  hidden_kernel<<<1, 32>>>(y + 96);
  return cudaGetLastError();
}

// ---- A program as it is written everywhere.

#define CHECK(call)                                              \
  do {                                                           \
    const cudaError_t error = (call);                            \
    if (error != cudaSuccess) {                                  \
      fprintf(stderr, "error: %s\n", cudaGetErrorString(error)); \
      return 1;                                                  \
    }                                                            \
  } while (0)

int main(int argc, char** argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 1000;
  if (argv[argc]) return 3;
  std::vector<float> host(n, 2.0f);
  float* device = nullptr;
  CHECK(cudaMalloc((void**)&device, n * sizeof(float)));
  CHECK(cudaMemcpy(device, host.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  cudaEventRecord(start);
  for (int i = 0; i < n; i += 50) c_kernel<<<1, 50>>>(device + i);
  cudaEventRecord(stop);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(host.data(), device, n * sizeof(float), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(device));
  printf("host[999] = %g\n", host[999]);
  return host[0] == 3 && host[999] == 3 ? 0 : 2;
}

// Copies that CUDA refuses: a bit for each. Then rows with a pitch, and a function of the host.
extern "C" int copies(float* x, int n) {
  float host[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 10, 11, 12, 13, 14, 15, 16}}, *rows = nullptr;
  size_t pitch = 0;
  cudaMallocPitch(&rows, &pitch, 8 * sizeof(float), 2);
  int refused = 0, bit = 0;
  const auto note = [&](cudaError_t error) {
    refused |= (error == cudaErrorInvalidValue && cudaGetLastError() == error) << bit++;
  };
  note(cudaMemcpy(x, host, (n + 1) * sizeof(float), cudaMemcpyHostToDevice));
  note(cudaMemcpy(host, x, sizeof(host), cudaMemcpyHostToDevice));
  note(cudaMemcpy(x, host, n * sizeof(float), cudaMemcpyDeviceToHost));
  note(cudaMemcpyAsync(x, host[0], n * sizeof(float), cudaMemcpyDeviceToDevice));
  note(cudaMemset(x + 1, 0, n * sizeof(float)));
  note(cudaMemcpy2D(x, 4, rows, pitch, 8, 1, cudaMemcpyDeviceToDevice));
  note(cudaMemset(x, 0, n * sizeof(float)));  // this one and the rest are right
  note(cudaMemcpy2D(rows, pitch, host, 32, 32, 2, cudaMemcpyHostToDevice));
  note(cudaMemcpy2DAsync(x, 8, rows + 1, pitch, 8, 2, cudaMemcpyDeviceToDevice));
  note(cudaLaunchHostFunc(
      nullptr, [](void* data) { *static_cast<int*>(data) |= 1 << 30; }, &refused));
  cudaFree(rows);
  return refused;
}

extern "C" cudaError_t launch_too_many() {
  c_kernel<<<1, 4096>>>(nullptr);
  return cudaGetLastError();
}
extern "C" void throws(int rung) { throw std::runtime_error("there is no such rung"); }
extern "C" int takes_a_class(std::vector<int> x) { return int(x.size()); }
