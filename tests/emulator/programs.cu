// Programs with their own memory, each with a fault in a marked line, or none: see
// test_emulator_programs.py. Host code is watched, too: what it copies, frees and touches.
#include <cuda_profiler_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void fill(float* y) { y[threadIdx.x] = 1; }  // FAULT kernel_after_free
__global__ void fill_from(float* y, int first) { y[first + threadIdx.x] = 1; }  // FAULT past_end

float host_scale[4] = {2, 2, 2, 2};
__managed__ float managed_scale = 3;
__device__ float unused[2], device_scale = 4;
template <typename T>
__device__ T templated_scale = 5;
__global__ void scale(float* y, const float* by) {
  y[threadIdx.x] = by[0];  // FAULT variable_of_host
}
__global__ void scale_by_others(float* y) {
  static int calls = 0;
  const char* words[] = {"a", "b", "c", "d"};
  calls += threadIdx.x == 0;
  y[threadIdx.x] =
      managed_scale + device_scale + templated_scale<float> + words[threadIdx.x % 4][0];
}

// Thread 0 reads what it then writes in its next turn: an atomic operation would not help.
__global__ void turns(float* y) {
  __shared__ float s[64];
  for (int i = 0; i < 2; ++i) {
    s[threadIdx.x] = y[threadIdx.x] + i;
    __syncthreads();
    y[threadIdx.x] = s[0];  // FAULT read_of_next_turn
  }
}

// Objects that a kernel makes, in memory of its own.
struct Shape {
  __device__ virtual float area() const = 0;
};
struct Square : Shape {
  float side;
  __device__ explicit Square(float side) : side(side) {}
  __device__ float area() const override { return side * side; }
};
__global__ void make_shapes(Shape** shapes) { shapes[threadIdx.x] = new Square(threadIdx.x); }
__global__ void measure_shapes(Shape* const* shapes, float* y) {
  int* twice = static_cast<int*>(malloc(sizeof(int)));
  *twice = 2;
  y[threadIdx.x] = *twice * shapes[threadIdx.x]->area();
  free(twice);
  delete static_cast<Square*>(shapes[threadIdx.x]);
}
__global__ void heap_after_delete(float* y) {
  float* x = new float[2]{1, 2};
  delete[] x;
  y[threadIdx.x] = x[threadIdx.x % 2];  // FAULT heap_use
}
__global__ void heap_twice() {
  void* x = malloc(8);
  free(x);
  free(x);  // FAULT heap_free
}

// Four kernels that count in one place.
__global__ void count_plainly(int* count) { *count += 1; }  // FAULT plain_count
__global__ void find_most(int* most, const int* x) {
  if (x[threadIdx.x] > *most) *most = x[threadIdx.x];  // FAULT plain_most
}
__global__ void start_and_count(int* count) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *count = 0;
  atomicAdd(count, 1);  // FAULT started_too_late
}
__global__ void start_and_count_shared(int* count) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  atomicAdd(&sum, 1);  // FAULT started_without_barrier
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(count, sum);
}
__global__ void count_rightly(int* count) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(count, sum);
}
// The first block starts the counter, and publishes that.
__global__ void count_after_flag(int* count, int* flag) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
      *count = 0;
      __threadfence();
      atomicExch(flag, 1);
    }
    while (atomicAdd(flag, 0) == 0) {
    }
    atomicAdd(count, 1);
  }
}

template <typename T>
struct Memory {
  T* data = nullptr;
  explicit Memory(size_t n) {
    cudaMalloc(&data, n * sizeof(T));
    cudaMemset(data, 0, n * sizeof(T));
  }
  ~Memory() { cudaFree(data); }
};

// A program: its argument says which fault it has.
int main(int argc, char* argv[]) {
  if (argc > 1) return atoi(argv[argc - 1]);
  const std::vector<float> host(100, 1.0f);
  float back[100] = {}, *y = nullptr;
  cudaMalloc(&y, sizeof(back));
  fill<<<1, 100>>>(y);
  cudaMemcpy(back, y, sizeof(back), cudaMemcpyDeviceToHost);
  cudaFree(y);
  return back[99] == 1 && argc == 1 && !argv[1] ? 0 : 1;
}

extern "C" void copy_too_much() {
  Memory<float> y(100);
  std::vector<double> x(100);
  cudaMemcpy(y.data, x.data(), 800, cudaMemcpyHostToDevice);  // FAULT copy_too_much
}
__constant__ float filter[8];
extern "C" void copy_over_variable() {
  const float host[16] = {};
  cudaMemcpyToSymbol(filter, host, sizeof(host));  // FAULT copy_over_variable
}
extern "C" void copy_too_far() {
  Memory<float> y(100);
  float host[2] = {};
  cudaMemcpyAsync(y.data + 99, host, sizeof(host), cudaMemcpyHostToDevice);  // FAULT copy_too_far
}
extern "C" void copy_to_host() {
  Memory<float> y(2);
  float host[2] = {};
  cudaMemcpy(host, y.data, sizeof(host), cudaMemcpyHostToDevice);  // FAULT copy_to_host
}
extern "C" void copy_from_gpu() {
  Memory<float> x(2), y(2);
  cudaMemcpy(y.data, x.data, 8, cudaMemcpyHostToDevice);  // FAULT copy_from_gpu
}
extern "C" void copy_rows() {
  Memory<float> x(8), y(8);
  cudaMemcpy2D(y.data, 4, x.data, 16, 8, 2, cudaMemcpyDeviceToDevice);  // FAULT copy_rows
}
extern "C" void copy_after_free() {
  float host[2], *y = nullptr;
  cudaMalloc(&y, sizeof(host));
  cudaFree(y);
  cudaMemcpy(host, y, sizeof(host), cudaMemcpyDeviceToHost);  // FAULT copy_after_free
}
extern "C" void set_host() {
  float host[2];
  cudaMemset(host, 0, sizeof(host));  // FAULT set_host
}
extern "C" void free_twice() {
  float* y = nullptr;
  cudaMalloc(&y, 8);
  cudaFree(y);
  cudaFree(y);  // FAULT free_twice
}
extern "C" void free_the_middle() {
  Memory<float> y(2);
  cudaFree(y.data + 1);  // FAULT free_the_middle
}
extern "C" void free_host() {
  float host[2];
  cudaFree(host);  // FAULT free_host
}
extern "C" void read_by_host() {
  Memory<float> y(100);
  fill<<<1, 100>>>(y.data);
  printf("%g\n", y.data[99]);  // FAULT read_by_host
}
extern "C" void write_by_host() {
  Memory<float> y(100);
  for (int i = 0; i < 100; ++i) y.data[i] = 1;  // FAULT write_by_host
}
extern "C" void read_freed_by_host() {
  float* y = nullptr;
  cudaMallocManaged(&y, 8);
  cudaFree(y);
  printf("%g\n", y[1]);  // FAULT read_freed_by_host
}
extern "C" void kernel_after_free() {
  float* y = nullptr;
  cudaMalloc(&y, 128);
  cudaFree(y);
  float* other = nullptr;
  cudaMalloc(&other, 128);
  fill<<<1, 32>>>(y);
  cudaFree(other);
}
extern "C" void past_end() {
  Memory<float> y(100);
  fill_from<<<1, 32>>>(y.data, 69);
}
extern "C" void variable_of_host() {
  Memory<float> y(32);
  scale<<<1, 32>>>(y.data, host_scale);
}
extern "C" void plain_count() { count_plainly<<<2, 64>>>(Memory<int>(1).data); }
extern "C" void plain_most() {
  Memory<int> most(1), x(64);
  int host[64];
  for (int i = 0; i < 64; ++i) host[i] = i + 1;
  cudaMemcpy(x.data, host, sizeof(host), cudaMemcpyHostToDevice);
  find_most<<<1, 64>>>(most.data, x.data);
}
extern "C" void started_too_late() { start_and_count<<<4, 1>>>(Memory<int>(1).data); }
extern "C" void started_without_barrier() {
  start_and_count_shared<<<1, 64>>>(Memory<int>(1).data);
}

extern "C" void read_of_next_turn() { turns<<<1, 64>>>(Memory<float>(64).data); }

extern "C" int tries() try { throw 7; } catch (const char*) {
  return 0;
} catch (int x) {
  return x;
}

extern "C" void heap_use() { heap_after_delete<<<1, 4>>>(Memory<float>(4).data); }
extern "C" void heap_free() { heap_twice<<<1, 4>>>(); }
extern "C" float shapes() {
  Shape** shapes = nullptr;
  float y[8];
  cudaMalloc(&shapes, 8 * sizeof(Shape*));
  Memory<float> of_gpu(8);
  make_shapes<<<1, 8>>>(shapes);
  measure_shapes<<<1, 8>>>(shapes, of_gpu.data);
  cudaMemcpy(y, of_gpu.data, sizeof(y), cudaMemcpyDeviceToHost);
  cudaFree(shapes);
  return y[7];
}

// Nothing is wrong here.
extern "C" int right() {
  float *pinned = nullptr, *managed = nullptr, host[32] = {};
  managed_scale = 3;
  float* filled = nullptr;
  cudaMalloc(&filled, 128);
  void* arguments[] = {&filled};
  if (cudaLaunchKernel((const void*)fill, dim3(1), dim3(32), arguments, 0, nullptr)) return 0;
  cudaMemcpy(host, filled, 128, cudaMemcpyDeviceToHost);
  cudaFree(filled);
  if (host[31] != 1) return 0;
  cudaHostAlloc(&pinned, 128, cudaHostAllocMapped);
  cudaMallocManaged(&managed, 128);
  cudaMemPrefetchAsync(managed, 128, 0);
  float* mapped = nullptr;
  cudaHostGetDevicePointer(&mapped, pinned, 0);
  fill<<<1, 32>>>(mapped);
  size_t free_bytes = 0, all_bytes = 0;
  cudaMemGetInfo(&free_bytes, &all_bytes);
  cudaDeviceProp of_gpu;
  cudaGetDeviceProperties(&of_gpu, 0);
  if (pinned[31] != 1 || free_bytes > all_bytes || of_gpu.totalConstMem != 65536) return 0;
  for (int i = 0; i < 32; ++i) pinned[i] = managed[i] = float(i);
  Memory<float> y(32);
  Memory<int> count(2);
  cudaMemcpy(y.data, pinned, 128, cudaMemcpyHostToDevice);
  cudaMemcpy(pinned, managed, 128, cudaMemcpyDefault);
  fill<<<1, 32>>>(managed);
  scale_by_others<<<1, 32>>>(y.data);
  cudaDeviceSynchronize();
  cudaMemcpy(host, y.data, 128, cudaMemcpyDeviceToHost);
  int counted = 0;
  count_rightly<<<3, 64>>>(count.data);
  cudaMemcpy(&counted, count.data, 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 3; ++i) count_after_flag<<<2, 32>>>(count.data, count.data + 1);
  cudaFree(nullptr);
  const bool is_right =
      managed[31] == 1 && pinned[31] == 31 && host[1] == 12 + 'b' && counted == 192;
  cudaFreeHost(pinned);
  cudaFree(managed);
  return is_right;
}
