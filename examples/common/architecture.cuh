// Which instructions a kernel's architecture has.
#pragma once

// Older GPUs have no clusters and no early start: there these compile to nothing. TMA and wgmma, in
// lessons for Hopper, compile to a trap elsewhere; launchers ask for the GPU's architecture first.
#if __CUDA_ARCH__ >= 900
#define SM_90(...) __VA_ARGS__
#else
#define SM_90(...)
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SM_90A(...) __VA_ARGS__
#else
#define SM_90A(...) __trap()
#endif
