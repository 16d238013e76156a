// examples/add_rms_norm without a GPU: its launcher's choices, and its kernels' indices.
#include "emulated_cuda.h"
// After it:
#include <sys/mman.h>

#include <cstdio>
#include <random>
#include <string>

#include "add_rms_norm_kernel.cu"

namespace {

using T = __nv_bfloat16;

// Memory that ends where the process has none, but for up to 14 bytes, which are set to 0xff.
char* memory(size_t bytes) {
  const size_t rounded = (bytes + 15) / 16 * 16, before = (rounded + 4095) / 4096 * 4096;
  void* all =
      mmap(nullptr, before + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(static_cast<char*>(all) + before, 4096, PROT_NONE);
  char* start = static_cast<char*>(all) + before - rounded;
  memset(start + bytes, 0xff, rounded - bytes);
  return start;
}

bool ends_well(const T* x, size_t count) {
  bool is_well = true;
  for (auto* c = reinterpret_cast<const unsigned char*>(x + count); uintptr_t(c) % 16; ++c) {
    is_well = is_well && *c == 0xff;
  }
  return is_well;
}

bool is_close(double x, double expected, double size) {
  return std::abs(x - expected) <= 0.005 * std::abs(expected) + 1e-5 * size;
}

std::mt19937 random_bits(1);

T* make(size_t count) {
  T* x = reinterpret_cast<T*>(memory(count * sizeof(T)));
  for (size_t i = 0; i < count; ++i) round_to(x[i], (random_bits() % 4096) / 1024.f - 2);
  return x;
}

// weight_dtype: RMS_BFLOAT16 or RMS_FLOAT32.
bool is_right(int64_t rows, int width, RmsDtype weight_dtype) {
  const size_t n = rows * width;
  T *a = make(n), *b = make(n), *dy = make(n), *ds = make(n), *half = make(width);
  T *y = make(n), *s = make(n), *dx = make(n);
  const bool is_wide = weight_dtype == RMS_FLOAT32;
  auto* w = reinterpret_cast<float*>(memory(4 * width));
  auto* dw = reinterpret_cast<float*>(memory(4 * width));
  auto* rstd = reinterpret_cast<float*>(memory(4 * rows));
  for (int i = 0; i < width; ++i) w[i] = to_float(half[i]);
  const void* weight = is_wide ? static_cast<void*>(w) : half;
  T* half_dw = make(width);
  RmsBackward back = {dx,           is_wide ? static_cast<void*>(dw) : half_dw,
                      nullptr,      dy,
                      ds,           s,
                      weight,       rstd,
                      rows,         width,
                      RMS_BFLOAT16, weight_dtype};
  back.scratch = memory(rms_scratch_size(back) * 4);
  launch_add_rms_norm(
      RmsForward{y, s, rstd, a, b, weight, 1e-6, rows, width, RMS_BFLOAT16, weight_dtype}, nullptr);
  launch_add_rms_norm(back, nullptr);

  bool all = ends_well(y, n) && ends_well(s, n) && ends_well(dx, n);
  std::vector<double> sums(width), sizes(width);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
    double squares = 0, product = 0;
    for (int i = 0; i < width; ++i) {
      T sum;
      round_to(sum, to_float(a[at + i]) + to_float(b[at + i]));
      all = all && to_float(sum) == to_float(s[at + i]);
      squares += double(to_float(sum)) * to_float(sum);
    }
    const double scale = 1 / std::sqrt(squares / width + 1e-6);
    for (int i = 0; i < width; ++i) product += to_float(dy[at + i]) * w[i] * to_float(s[at + i]);
    for (int i = 0; i < width; ++i) {
      const double x = to_float(s[at + i]) * scale, grad = to_float(dy[at + i]);
      const double d = scale * (grad * w[i] - x * product * scale / width) + to_float(ds[at + i]);
      all = all && is_close(to_float(y[at + i]), x * w[i], 1) &&
            is_close(to_float(dx[at + i]), d, 1 + scale);
      sums[i] += grad * x, sizes[i] += std::abs(grad * x);
    }
  }
  for (int i = 0; i < width; ++i) {
    all = all && is_close(is_wide ? dw[i] : to_float(half_dw[i]), sums[i], sizes[i] + 1);
  }
  return all;
}

// Prints what does not fit, if anything.
int check_values() {
  for (int width :
       {1, 3, 8, 15, 16, 17, 33, 48, 63, 64, 72, 100, 127, 130, 256, 257, 383, 500, 1001, 4097}) {
    for (int rows : {0, 1, 2, 7, 9, 33, 150, 401, 1237}) {
      if (width * rows > 40000) continue;
      if (!is_right(rows, width, rows % 2 ? RMS_FLOAT32 : RMS_BFLOAT16)) {
        printf("wrong: %d rows of %d\n", rows, width);
      }
    }
  }
  return 0;
}

// Every launch that the launchers choose: its kernel, if it is one that reads rows twice, and
// sizes.
int show_launches(int64_t rows, int64_t width) {
  emulated::is_dry = true;
  emulated::last_error = cudaErrorInvalidValue;  // somebody else's, not looked at yet
  char* p = memory(0);
  RmsBackward back = {p, p, p, p, p, p, p, p, rows, width, RMS_BFLOAT16, RMS_BFLOAT16};
  launch_add_rms_norm(RmsForward{p, p, p, p, p, p, 1e-6, rows, width, RMS_BFLOAT16, RMS_BFLOAT16},
                      nullptr);
  launch_add_rms_norm(back, nullptr);
  for (const auto& launch : emulated::launches) {
    std::string name = "once";
    for (void* twice : {(void*)forward_any<T, 1>, (void*)forward_any<T, 8>,
                        (void*)backward_any<T, 1>, (void*)backward_any<T, 8>}) {
      if (launch.kernel == twice) name = "twice";
    }
    if (launch.kernel == (void*)add_partial<T>) name = "add_partial";
    printf("%s %u %u %u %u\n", name.c_str(), launch.blocks.x, launch.blocks.y, launch.threads.x,
           launch.threads.y);
  }
  printf("error %d\n", emulated::last_error == cudaErrorInvalidValue);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3) return show_launches(atoll(arguments[1]), atoll(arguments[2]));
  emulated::multiprocessors = atoi(arguments[1]);
  return check_values();
}
