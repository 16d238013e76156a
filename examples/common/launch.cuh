// One launcher for all kernels, and what launchers ask of the GPU.
#pragma once
#include <cuda_runtime.h>
#include <stddef.h>

// Returns NULL, or the error's message, which is static (do not free). Clears the error: torch
// would report it again, at its next call.
inline const char* message_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

// Whether clusters and the early start are in the kernel's code: it must have been compiled for
// sm_90 or later. The driver may have compiled older code for a newer GPU.
template <typename... Parameters>
bool has_hopper_code(void (*kernel)(Parameters...)) {
  cudaFuncAttributes found = {};
  return message_of(cudaFuncGetAttributes(&found, kernel)) == nullptr && found.ptxVersion >= 90;
}

struct Launch {
  dim3 blocks, threads;
  size_t shared = 0;      // bytes of shared memory, above what the kernel declares
  dim3 cluster = 1;       // blocks of a cluster
  bool is_early = false;  // may start while the kernel before runs: it must wait by itself
};

// Starts a kernel in a stream of the current device. Converts each argument to the kernel's
// parameter. Returns NULL or an error message, and no error of a launch before it.
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), const Launch& how, cudaStream_t stream,
                   const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {how.blocks, how.threads, how.shared, stream, attributes, 0};
  // Settings of kernels are made for each call, as each device has its own.
  cudaError_t error = cudaSuccess;
  if (how.shared > 0) {
    const auto setting = cudaFuncAttributeMaxDynamicSharedMemorySize;
    error = cudaFuncSetAttribute(kernel, setting, static_cast<int>(how.shared));
  }
  if (how.is_early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  const unsigned size = how.cluster.x * how.cluster.y * how.cluster.z;
  if (size > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {how.cluster.x, how.cluster.y, how.cluster.z};
  }
  if (size > 8 && error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error == cudaSuccess)
    error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  return message_of(error);
}
