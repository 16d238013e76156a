// Tensor cores: a warp multiplies matrices that lie in its lanes' registers. Lane 4 g + t holds two
// neighbours of row g (or column g), at columns (or rows) 2 t and 2 t + 1, of each 8 x 8 part.
#include <string.h>

#include <initializer_list>

#include "lanes.h"
#include "registers.h"

namespace emulator {

static float wide(uint16_t bits, bool is_half) {
  if (is_half) return emulator_half_to_float(bits);
  const uint32_t word = uint32_t(bits) << 16;
  float x;
  memcpy(&x, &word, sizeof(x));
  return x;
}

// c += a b, 16 x 16 times 16 x 8. Sums are float32 on a GPU, too, though it cuts off digits.
static void multiply_16_bits(MatrixRegisters* const (&lanes)[kLanes], bool is_half) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned row = g + i / 2 % 2 * 8, k = t * 2 + i % 2 + i / 4 * 8;
      a[row][k] = wide(lanes[lane]->a[i / 2] >> i % 2 * 16, is_half);
    }
    for (unsigned i = 0; i < 4; ++i)
      b[t * 2 + i % 2 + i / 2 * 8][g] = wide(lanes[lane]->b[i / 2] >> i % 2 * 16, is_half);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float c;
      memcpy(&c, lanes[lane]->c[i], sizeof(c));
      double sum = c;
      for (unsigned k = 0; k < 16; ++k) sum += double(a[row][k]) * b[k][column];
      c = static_cast<float>(sum);
      memcpy(lanes[lane]->c[i], &c, sizeof(c));
    }
  }
}

// The same of bytes: 16 x 32 times 32 x 8, four neighbours in a register.
static void multiply_8_bits(MatrixRegisters* const (&lanes)[kLanes]) {
  int a[16][32], b[32][8];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 16; ++i)
      a[g + i / 4 % 2 * 8][t * 4 + i % 4 + i / 8 * 16] = int8_t(lanes[lane]->a[i / 4] >> i % 4 * 8);
    for (unsigned i = 0; i < 8; ++i)
      b[t * 4 + i % 4 + i / 4 * 16][g] = int8_t(lanes[lane]->b[i / 4] >> i % 4 * 8);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      int c;
      memcpy(&c, lanes[lane]->c[i], sizeof(c));
      for (unsigned k = 0; k < 32; ++k) c += a[row][k] * b[k][column];
      memcpy(lanes[lane]->c[i], &c, sizeof(c));
    }
  }
}

void multiply_matrices(const WarpRequest* const (&requests)[kLanes]) {
  MatrixRegisters* lanes[kLanes];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!requests[lane]) return;  // the mask's fault is reported
    lanes[lane] = reinterpret_cast<MatrixRegisters*>(requests[lane]->value);
  }
  if (lanes[0]->type == kU16) return multiply_8_bits(lanes);
  multiply_16_bits(lanes, lanes[0]->type == kF16);
}

// Lane i of each eight has passed the address of row i; matrix m comes from the addresses of lanes
// 8 m to 8 m + 7.
void ldmatrix(const WarpRequest* const (&requests)[kLanes]) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!requests[lane]) return;
  }
  const auto registers = [&](unsigned lane) {
    return reinterpret_cast<MatrixRegisters*>(requests[lane]->value);
  };
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    MatrixRegisters& own = *registers(lane);
    for (unsigned m = 0; m < own.count; ++m) {
      uint16_t two[2];
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned row = own.is_transposed ? t * 2 + i : g;
        const unsigned column = own.is_transposed ? g : t * 2 + i;
        memcpy(&two[i], registers(m * 8 + row)->row + column * 2, 2);
      }
      memcpy(own.c[m], two, 4);
    }
  }
}

void transpose_matrix(const WarpRequest* const (&requests)[kLanes]) {
  uint16_t x[8][8];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!requests[lane]) return;
    memcpy(&x[lane / 4][lane % 4 * 2], reinterpret_cast<void*>(requests[lane]->value), 4);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const uint16_t two[2] = {x[lane % 4 * 2][lane / 4], x[lane % 4 * 2 + 1][lane / 4]};
    memcpy(reinterpret_cast<void*>(requests[lane]->value), two, 4);
  }
}

}  // namespace emulator
