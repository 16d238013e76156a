// Copies from global to shared memory in the background: __pipeline_memcpy_async() starts one. The
// bytes arrive when the thread waits.
#pragma once
#include "emulator/warp.h"

EMULATOR_INLINE void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes,
                                             size_t zeros = 0) {
  emulator_copy_async(shared, global, bytes, zeros);
}
EMULATOR_INLINE void __pipeline_commit() { emulator_copy_commit(); }
EMULATOR_INLINE void __pipeline_wait_prior(size_t batches) { emulator_copy_wait(unsigned(batches)); }
