// Groups of threads: a block, tiles of a warp, the lanes that are active. A cluster of one block,
// too; larger ones, and a whole grid that waits, need a GPU.
#pragma once
#include "cuda_runtime.h"

namespace cooperative_groups {

class thread_block {
 public:
  static void sync() { __syncthreads(); }
  static unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned num_threads() { return size(); }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_index() { return blockIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

// Lanes of one warp, by their mask. size: how many.
class lanes_group {
 public:
  lanes_group(unsigned mask, unsigned first, unsigned size)
      : mask_(mask), first_(first), size_(size) {}
  unsigned size() const { return size_; }
  unsigned num_threads() const { return size_; }
  EMULATOR_INLINE void sync() const { __syncwarp(mask_); }
  template <typename T>
  EMULATOR_INLINE T shfl(T x, int rank) const {
    return __shfl_sync(mask_, x, rank, int(size_));
  }
  template <typename T>
  EMULATOR_INLINE T shfl_up(T x, unsigned distance) const {
    return __shfl_up_sync(mask_, x, distance, int(size_));
  }
  template <typename T>
  EMULATOR_INLINE T shfl_down(T x, unsigned distance) const {
    return __shfl_down_sync(mask_, x, distance, int(size_));
  }
  template <typename T>
  EMULATOR_INLINE T shfl_xor(T x, int lanes) const {
    return __shfl_xor_sync(mask_, x, lanes, int(size_));
  }
  EMULATOR_INLINE unsigned ballot(int x) const { return __ballot_sync(mask_, x) >> first_; }
  EMULATOR_INLINE int any(int x) const { return __any_sync(mask_, x); }
  EMULATOR_INLINE int all(int x) const { return __all_sync(mask_, x); }
  template <typename T>
  EMULATOR_INLINE unsigned match_any(T x) const {
    return __match_any_sync(mask_, x) >> first_;
  }

 protected:
  unsigned mask_, first_, size_;
};

// rank, parent_size: of the thread in the group that was cut into tiles, and that group's threads.
template <unsigned kSize, typename Parent = void>
class thread_block_tile : public lanes_group {
  static_assert(kSize <= 32 && (kSize & (kSize - 1)) == 0, "tiles of more than a warp need a GPU");

 public:
  thread_block_tile(unsigned rank, unsigned parent_size)
      : lanes_group((kSize == 32 ? ~0u : (1u << kSize % 32) - 1) << first_lane(), first_lane(),
                    kSize),
        rank_(rank),
        parent_size_(parent_size) {}
  template <typename Other>
  thread_block_tile(const thread_block_tile<kSize, Other>& tile)
      : thread_block_tile(tile.meta_group_rank() * kSize + tile.thread_rank(),
                          tile.meta_group_size() * kSize) {}
  unsigned thread_rank() const { return rank_ % kSize; }
  unsigned meta_group_rank() const { return rank_ / kSize; }
  unsigned meta_group_size() const { return (parent_size_ + kSize - 1) / kSize; }

 private:
  static unsigned first_lane() { return thread_block::thread_rank() % 32 / kSize * kSize; }
  unsigned rank_, parent_size_;
};
template <unsigned kSize, typename Parent>
thread_block_tile<kSize, Parent> tiled_partition(const Parent& parent) {
  return {parent.thread_rank(), parent.size()};
}

// The lanes that came here together.
class coalesced_group {
 public:
  explicit coalesced_group(unsigned mask) : mask_(mask) {}
  unsigned size() const { return __popc(mask_); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const {
    return __popc(mask_ & ((1u << thread_block::thread_rank() % 32) - 1));
  }
  static unsigned meta_group_rank() { return 0; }
  static unsigned meta_group_size() { return 1; }
  EMULATOR_INLINE void sync() const { __syncwarp(mask_); }
  template <typename T>
  EMULATOR_INLINE T shfl(T x, int rank) const {
    unsigned rest = mask_;
    while (rank-- > 0) rest &= rest - 1;
    return __shfl_sync(mask_, x, __ffs(rest) - 1);
  }
  template <typename T>
  EMULATOR_INLINE T shfl_up(T x, unsigned distance) const {
    const unsigned rank = thread_rank();
    return shfl(x, int(rank < distance ? rank : rank - distance));
  }
  template <typename T>
  EMULATOR_INLINE T shfl_down(T x, unsigned distance) const {
    const unsigned rank = thread_rank();
    return shfl(x, int(rank + distance < size() ? rank + distance : rank));
  }
  EMULATOR_INLINE unsigned ballot(int x) const { return by_rank(__ballot_sync(mask_, x)); }
  template <typename T>
  EMULATOR_INLINE unsigned match_any(T x) const {
    return by_rank(__match_any_sync(mask_, x));
  }
  EMULATOR_INLINE int any(int x) const { return __any_sync(mask_, x); }
  EMULATOR_INLINE int all(int x) const { return __all_sync(mask_, x); }

 private:
  unsigned by_rank(unsigned lanes) const {  // a bit for each thread of the group
    unsigned result = 0, rank = 0;
    for (unsigned rest = mask_; rest; rest &= rest - 1, ++rank)
      result |= unsigned((lanes & rest & -rest) != 0) << rank;
    return result;
  }
  unsigned mask_;
};
EMULATOR_INLINE coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

// The threads of a group that came with the same label.
template <typename Group, typename Label>
EMULATOR_INLINE coalesced_group labeled_partition(const Group& group, Label label) {
  const unsigned mine = group.match_any(label);
  unsigned mask = 0;
  for (unsigned rank = 0; rank < group.size(); ++rank)
    mask |= (mine >> rank & 1) << group.shfl(thread_block::thread_rank() % 32, int(rank));
  return coalesced_group(mask);
}
template <typename Group>
EMULATOR_INLINE coalesced_group binary_partition(const Group& group, bool which) {
  return labeled_partition(group, int(which));
}

class grid_group {
 public:
  static void sync() { emulator_needs_gpu("grid.sync()"); }
  static bool is_valid() { return false; }
  static unsigned long long size() {
    return (unsigned long long)gridDim.x * gridDim.y * gridDim.z * thread_block::size();
  }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }
  static unsigned long long num_threads() { return size(); }
  static unsigned long long num_blocks() {
    return (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
  }
  static unsigned long long block_rank() {
    return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 block_index() { return blockIdx; }
};
inline grid_group this_grid() { return {}; }

class cluster_group {  // of one block
 public:
  static void sync() { __syncthreads(); }
  static unsigned num_blocks() { return 1; }
  static unsigned block_rank() { return 0; }
  static unsigned thread_rank() { return thread_block::thread_rank(); }
  static dim3 dim_blocks() { return 1; }
  template <typename T>
  static T* map_shared_rank(T* pointer, int) {
    return pointer;
  }
};
inline cluster_group this_cluster() { return {}; }

template <typename Group>
EMULATOR_INLINE void sync(const Group& group) {
  group.sync();
}
template <typename Group>
unsigned thread_rank(const Group& group) {
  return group.thread_rank();
}

template <typename T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <typename T>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
// All threads of a tile get the result.
template <unsigned kSize, typename Parent, typename T, typename Combine>
EMULATOR_INLINE T reduce(const thread_block_tile<kSize, Parent>& tile, T x, Combine combine) {
  for (unsigned distance = kSize / 2; distance > 0; distance /= 2)
    x = combine(x, tile.shfl_xor(x, int(distance)));
  return x;
}
template <typename T, typename Combine>
EMULATOR_INLINE T reduce(const coalesced_group& group, T x, Combine combine) {
  T result = group.shfl(x, 0);
  for (unsigned rank = 1; rank < group.size(); ++rank)
    result = combine(result, group.shfl(x, int(rank)));
  return result;
}

}  // namespace cooperative_groups
