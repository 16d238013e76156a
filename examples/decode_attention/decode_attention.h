// The arguments of attend() and append() as plain C++: no torch and no CUDA in it.
#pragma once
#include "plan.h"

struct CUstream_st;  // a cudaStream_t points to one

enum DecodeDtype { DECODE_FLOAT32, DECODE_FLOAT16, DECODE_BFLOAT16, DECODE_INT8 };

// Codes of int8 are -kMostCode to kMostCode, times a scale for each token and key head. If the
// largest number is below kTiny, scale and codes are 0: kMostCode / less would be infinity.
constexpr float kMostCode = 127, kTiny = 1e-36f;

// A tensor [batch, heads, tokens, d] whose last dimension is dense. Strides are in elements.
struct Rows {
  void* data;
  int64_t batch, head, token;
};

struct Call {
  int batch, heads, key_heads, capacity, d;  // heads is a multiple of key_heads
  DecodeDtype dtype, cached;                 // of q, and of the cache: the same, or int8
  Rows out = {}, q = {}, keys = {}, values = {}, key_scale = {}, value_scale = {};
  const int32_t* lengths = nullptr;
};

struct AttendCall : Call {
  float scale = 0;
  Plan plan = {};            // on a GPU
  float* scratch = nullptr;  // on a GPU, if a second kernel joins parts
};

// append() of one token for each row, and attend() with it: lengths do not count the new token.
struct StepCall : AttendCall {
  Rows k = {}, v = {};
  const float *cos = nullptr, *sin = nullptr;  // [positions, d / 2], positions >= capacity
  int positions = 0;
};

struct AppendCall : Call {  // out: the rotated q
  Rows k = {}, v = {};
  const float *cos = nullptr, *sin = nullptr;  // [positions, d / 2]
  const int32_t* counts = nullptr;             // may be null
  int tokens = 0, positions = 0;
};

void run_on_cpu(const AttendCall& call, int64_t begin, int64_t end);  // key heads of all rows
void run_on_cpu(const AppendCall& call, int64_t begin, int64_t end);  // tokens of all rows
int64_t plan_on_gpu(AttendCall& call);  // for the current device; returns floats of scratch memory
// All return nullptr, or a static error message.
const char* run_on_gpu(const AttendCall& call, CUstream_st* stream);
const char* run_on_gpu(const StepCall& call, CUstream_st* stream);
const char* run_on_gpu(const AppendCall& call, CUstream_st* stream);
