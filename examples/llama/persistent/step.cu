// A decoding step of a Llama with 4-bit weights in one kernel, for one text or two (TEXTS, which
// the compiler gets). A block for each multiprocessor; in each, a producer warp copies the block's
// part of all weights into a ring, layer after layer, and never waits for results; consumer warps
// compute. docs/18_llama.md explains it.
#include <algorithm>

#include "attention.cuh"
#include "common/launch.cuh"
#include "products.cuh"

namespace persistent {

// Columns of the model, in stages: those of an 8B model.
constexpr int kHiddenGroups = 4096 / kStageColumns, kInnerGroups = 14336 / kStageColumns;
constexpr int kHidden = kHiddenGroups * kStageColumns, kInner = kInnerGroups * kStageColumns;

// The producer: one thread.
struct Producer {
  Shared& shared;
  Place place = {0, 1}, landed = {0, 0};  // landed: kInFlight stages before
  int begun = 0;

  // Waits until the next stage is empty, and until few enough copies are under way.
  __device__ void begin(int bytes) {
    if (++begun > kInFlight) {
      wait(&shared.full[landed.stage], landed.parity);
      landed.next();
    }
    wait(&shared.empty[place.stage], place.parity);
    arrive_and_expect_tx(&shared.full[place.stage], bytes);
  }
  __device__ void copy(int to, const void* from, int bytes) {
    load_bulk_once(shared.ring[place.stage] + to, from, bytes, &shared.full[place.stage]);
  }
  // The block's strips of a weight, in the order in which they are multiplied.
  __device__ void copy_weight(const char* from, int rows, int groups) {
#pragma unroll 1
    for (int i = 0; i < strips_of(rows); ++i) {
      const char* strip = from + int64_t{first_row(i) / kRows} * groups * kStage;
#pragma unroll 1
      for (int s = 0; s < groups; ++s) {
        begin(kStage);
        copy(0, strip + s * kStage, kStage);
        place.next();
      }
    }
  }
  __device__ void copy_cache(const Step& p, const Split& work, int layer) {
    const int64_t first = (int64_t{layer} * kTexts * p.key_heads + work.head) * p.capacity;
    for (int tile = work.split; tile < work.tiles; tile += work.step) {
      const int token = tile * kTileTokens;
      const int bytes = min(kTileTokens, p.capacity - token) * kHead * 2;
      begin(2 * bytes);
      copy(0, p.keys + (first + token) * kHead, bytes);
      copy(kTileBytes, p.values + (first + token) * kHead, bytes);
      place.next();
    }
  }
};

__device__ inline void produce(const Step& p, Shared& shared) {
  const Split work(p);
  Producer producer = {shared};
#pragma unroll 1
  for (int layer = 0; layer < p.layers; ++layer) {
#pragma unroll 1
    for (int part = 0; part < 4; ++part) {
      const char* from = part == 0 ? p.qkv : part == 1 ? p.o : part == 2 ? p.gate_up : p.down;
      const int n = part == 0 ? p.qkv_rows() : part == 2 ? 2 * p.inner : p.hidden;
      const int groups = part == 3 ? kInnerGroups : kHiddenGroups;
      const int64_t bytes = int64_t{n / kRows} * groups * kStage;
      producer.copy_weight(from + layer * bytes, n, groups);
      if (part == 0 && work.is_there) producer.copy_cache(p, work, layer);
    }
  }
  producer.copy_weight(p.last, p.vocabulary, kHiddenGroups);
}

// The larger logit; of equal ones the first token.
__device__ inline float2 better(float2 a, float2 b) {
  const bool is_b = b.x > a.x || (b.x == a.x && __float_as_int(b.y) < __float_as_int(a.y));
  return is_b ? b : a;
}
__device__ inline float2 best_of_warp(float2 x) {
  for (int i = 1; i < 32; i *= 2)
    x = better(x, {__shfl_xor_sync(~0u, x.x, i), __shfl_xor_sync(~0u, x.y, i)});
  return x;
}

// The most probable token of each text becomes the next one: each block sends its best, block 0
// compares them. A warp for each text.
__device__ inline void choose(Consumer& c) {
  const Step& p = c.step;
  c.sync();
  const int text = c.warp;
  if (text >= kTexts) return;
  static_assert(kConsumers / 8 == 64);
  const float2* const best_of_block = c.shared.best[text];
  const float2 of_block = best_of_warp(better(best_of_block[c.lane], best_of_block[c.lane + 32]));
  Tagged* const to = p.best + 2 * (text * gridDim.x + blockIdx.x);
  if (c.lane < 2) send(to + c.lane, __float_as_uint(c.lane ? of_block.y : of_block.x), c.tag);
  if (blockIdx.x != 0) return;
  float2 best = of_block;
  for (int i = c.lane; i < gridDim.x; i += 32) {
    const Tagged* const from = p.best + 2 * (text * gridDim.x + i);
    const uint32_t x = receive<Exchange::kTags>(load_relaxed(from), from, c.tag);
    const uint32_t y = receive<Exchange::kTags>(load_relaxed(from + 1), from + 1, c.tag);
    best = better(best, {__uint_as_float(x), __uint_as_float(y)});
  }
  __syncwarp();
  best = best_of_warp(best);
  if (c.lane != 0) return;
  p.token[text] = __float_as_int(best.y);
  const int length = p.counts[text];
  p.counts[text] = length + 1;
  p.counts[kTexts + text] = length + 2;
  if (text == 0) *p.number += 1;
}

template <Exchange kExchange>
__device__ inline void consume(const Step& p, Shared& shared) {
  const int barriers = 6 * p.layers + 2;  // of a step
  Consumer c = {p, shared};
  const uint32_t number = *p.number;
  c.barriers = (number - 1) * barriers;
  const Split work(p);
  c.tag = number * 256;
  // The residual stream of the block's rows begins with the embedding. A warp for each text.
  if (c.warp < kTexts) {
    const Half* const embedded = p.embedding + p.token[c.warp] * p.hidden;
    for (int i = 2 * c.lane; i < strips_of(p.hidden) * kRows; i += 64) {
      const int row = first_row(i / kRows) + i % kRows;
      const uint32_t x = *reinterpret_cast<const uint32_t*>(embedded + row);
      *reinterpret_cast<float2*>(shared.residual[c.warp] + i) = floats(x);
      send(p.x_2 + (c.warp * p.hidden + row) / 2, x, c.tag);
    }
  }
  grid_barrier<kExchange>(c);
#pragma unroll 1
  for (c.layer = 0;; ++c.layer) {
    const Half* const norm = p.norms + 2 * c.layer * p.hidden;
    const bool is_end = c.layer == p.layers;
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {  // q, k, v, or the last layer; o; gate and up: one code
      Product product = {p.qkv_rows(), Epilogue::kSend, p.x_2, norm, p.q};
      if (is_end) {
        product = {p.vocabulary, Epilogue::kLogits, p.x_2, norm, nullptr};
        if (c.thread < kConsumers / 8) {
          for (auto& best : shared.best) best[c.thread] = {-INFINITY, 0};
        }
      }
      if (part == 1) product = {p.hidden, Epilogue::kAddToResidual, p.attended, nullptr, p.x};
      if (part == 2) product = {2 * p.inner, Epilogue::kGate, p.x, norm + p.hidden, p.inner_x};
      multiply<kExchange, kHiddenGroups>(c, product, c.tag);
      if (is_end) break;
      if (part > 0) continue;
      if (work.is_there) attend<kExchange>(c, work);
      grid_barrier<kExchange>(c);
      if (work.is_there) join<kExchange>(c, work);
      grid_barrier<kExchange>(c);
    }
    if (is_end) break;
    const Product down = {p.hidden, Epilogue::kAddToResidual, p.inner_x, nullptr, p.x_2};
    multiply<kExchange, kInnerGroups>(c, down, c.tag + 1);
    ++c.tag;
  }
  choose(c);
}

template <Exchange kExchange>
__global__ void __launch_bounds__(kThreads, 1) decode(const __grid_constant__ Step p) {
  extern __shared__ __align__(128) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], kWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kConsumers)
    consume<kExchange>(p, shared);
  else if (threadIdx.x == kConsumers)
    produce(p, shared);
}

// Numbers that blocks send each other, in this order.
struct Words {
  int64_t x, q, parts, inner, best;
  explicit Words(const Sizes& p, int blocks)
      : x(kTexts * p.hidden / 2),
        q(kTexts * p.qkv_rows() / 2),
        parts(int64_t{kTexts} * p.key_heads * p.splits * p.part()),
        inner(kTexts * p.inner / 2),
        best(kTexts * 2 * blocks) {}
  int64_t all() const { return 3 * x + q + parts + inner + best; }
};

int splits_of(const Sizes& p, int blocks) {
  for (const int splits : {16, 8, 4}) {
    if (kTexts * p.key_heads * splits <= blocks) return splits;
  }
  return 0;
}

}  // namespace persistent

// Tensors as in Step; sizes in ints. words: 64 bits each, at first 0. state: the step's number, at
// first 1, and the barriers' counter, at first 0. is_tagged: false for the page's rung with
// barriers. Returns NULL or an error message (do not free).
extern "C" const char* launch_step(const char* qkv, const char* o, const char* gate_up,
                                   const char* down, const char* last, const void* embedding,
                                   const void* norms, void* keys, void* values, const float* cos,
                                   const float* sin, int64_t* token, int32_t* counts, void* logits,
                                   void* words, uint32_t* state, int word_count, int layers,
                                   int heads, int key_heads, int vocabulary, int capacity,
                                   float eps, int is_tagged, cudaStream_t stream) {
  using namespace persistent;
  const int blocks = device_attribute(cudaDevAttrMultiProcessorCount);
  Step p = {{layers, kHidden, kInner, heads, key_heads, vocabulary, capacity, 0, eps},
            qkv,
            o,
            gate_up,
            down,
            last,
            static_cast<const Half*>(embedding),
            static_cast<const Half*>(norms),
            static_cast<Half*>(keys),
            static_cast<Half*>(values),
            cos,
            sin,
            token,
            counts,
            state,
            static_cast<__nv_bfloat162*>(logits),
            state + 1};
  p.splits = splits_of(p, blocks);
  const Words count(p, blocks);
  if (heads * kHead != kHidden || heads != key_heads * kGroupHeads || layers > 254 ||
      vocabulary % kRows)
    return "expected 8B sizes: 4096 columns, heads of 128, four for each key head";
  if (p.splits == 0 || divide_up(kHidden / kRows, blocks) * kRows > kMostResidual)
    return "the GPU has too few multiprocessors";
  if (count.all() > word_count) return "too few words";
  Tagged* next = static_cast<Tagged*>(words);
  const auto take = [&](int64_t size) { return std::exchange(next, next + size); };
  p.x = take(count.x);
  p.x_2 = take(count.x);
  p.attended = take(count.x);
  p.q = take(count.q);
  p.parts = take(count.parts);
  p.inner_x = take(count.inner);
  p.best = take(count.best);
  const auto kernel = is_tagged ? decode<Exchange::kTags> : decode<Exchange::kBarriers>;
  const void* const address = reinterpret_cast<const void*>(kernel);
  const KernelOnDevice found = on_current_device(address);  // allows it the shared memory
  if (found.error != cudaSuccess) return message_of(found.error);
  if (found.dynamic_shared < sizeof(Shared))
    return "the kernel needs more shared memory per block than this GPU has";
  // All blocks run at once, or the launch fails: they wait for each other.
  void* arguments[] = {&p};
  return message_of(cudaLaunchCooperativeKernel(address, dim3(blocks), dim3(kThreads), arguments,
                                                sizeof(Shared), stream));
}
