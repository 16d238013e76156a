// How TMA finds tiles of a tensor.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

// A contiguous tensor whose elements have so many bytes. Sizes and boxes, which are the tiles, have
// the innermost dimension first. promotion: L2 fetches whole blocks of so many bytes from memory;
// where rows begin at any multiple of 16 bytes, none may be faster. Returns NULL or an error
// message.
template <int kDims>
const char* make_map(CUtensorMap* map, CUtensorMapDataType type, int bytes, const void* data,
                     const cuuint64_t (&sizes)[kDims], const cuuint32_t (&box)[kDims],
                     CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
                     CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  // Asked of the runtime (12.5 and later), so that nothing has to be linked against the driver.
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (!encode) return "the driver has no cuTensorMapEncodeTiled, expected that of CUDA 12 or newer";
  cuuint64_t strides[kDims] = {sizes[0] * bytes};
  cuuint32_t steps[kDims];
  for (int i = 0; i < kDims; ++i) {
    steps[i] = 1;
    if (i > 0) strides[i] = strides[i - 1] * sizes[i];
  }
  const CUresult result =
      encode(map, type, kDims, const_cast<void*>(data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "cuTensorMapEncodeTiled refused the tensor";
}
