// The registers of a lane that an instruction for matrices reads and writes.
#pragma once
#include <stdint.h>

namespace emulator {

struct MatrixRegisters {
  uint32_t a[4], b[2];
  void* c[4];      // where they are, as they are results, too
  int type;        // of a and b: kF16, kBF16, or kU16 for bytes with a sign
  const char* row; // ldmatrix: the row whose address this lane has passed
  unsigned count;  // matrices
  bool is_transposed;
};

}  // namespace emulator
