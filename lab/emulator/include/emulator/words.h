// Attributes of what the emulator offers to kernels. Its functions are inlined, so that a check
// inside them returns to the kernel's own line.
#pragma once

#define EMULATOR_INLINE inline __attribute__((always_inline, artificial))
#define EMULATOR_UNWATCHED __attribute__((no_sanitize("thread", "undefined")))

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_assume(...)
#define __nv_pure__
