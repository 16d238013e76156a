// The launchers: which kernel for which dtype and size.
#include "append.cuh"

namespace decode {

const char* text(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// Clusters and the early start need sm_90, and code that was compiled for it: the driver may have
// compiled older code for this GPU.
bool is_hopper() {
  static const bool is_code = [] {
    cudaFuncAttributes found = {};
    return cudaFuncGetAttributes(&found, join<__half, 64>) == cudaSuccess && found.ptxVersion >= 90;
  }();
  return is_code;
}

template <typename Call>
const char* start(void (*kernel)(Call), dim3 blocks, int threads, int shared, int cluster,
                  const Call& call, cudaStream_t stream) {
  // All kernels ask for the same division of a multiprocessor's memory: a change of it has to wait
  // until the multiprocessor is idle. (For each call, as each device has its own setting.)
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (status != cudaSuccess) return text(status);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  const unsigned count = is_hopper() ? (cluster > 1 ? 2 : 1) : 0;
  const cudaLaunchConfig_t config = {
      blocks, static_cast<unsigned>(threads), static_cast<size_t>(shared), stream, attributes,
      count};
  return text(cudaLaunchKernelEx(&config, kernel, call));
}

template <typename T, bool kInt8, int D, int NT>
const char* run(const AttendCall& call, cudaStream_t stream) {
  const auto kernel = attend<Shape<T, kInt8, D, NT>>;
  const int shared = call.plan.warps * kRing, splits = call.plan.splits;
  const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, attribute, shared);  // each device has its own
  if (status != cudaSuccess) return text(status);
  const unsigned blocks = static_cast<unsigned>(call.batch) * call.key_heads * splits;
  const char* error = start(kernel, blocks, 32 * call.plan.warps, shared,
                            call.plan.is_cluster ? splits : 1, call, stream);
  if (error != nullptr || splits == 1 || call.plan.is_cluster) return error;
  return start(join<T, D>, static_cast<unsigned>(call.batch) * call.heads, kJoiners * D / 4, 0, 1,
               call, stream);
}

template <typename T, bool kInt8>
const char* run(const AttendCall& call, cudaStream_t stream) {
  const bool is_wide = call.heads / call.key_heads > 8;
  if (call.d == 64)
    return is_wide ? run<T, kInt8, 64, 2>(call, stream) : run<T, kInt8, 64, 1>(call, stream);
  return is_wide ? run<T, kInt8, 128, 2>(call, stream) : run<T, kInt8, 128, 1>(call, stream);
}

template <typename T, bool kInt8>
const char* run(const AppendCall& call, cudaStream_t stream) {
  const int rows = call.heads + 2 * call.key_heads, at_once = kAppendThreads * 16 / call.d;
  const dim3 blocks(static_cast<unsigned>(call.batch) * call.tokens,
                    (rows + at_once - 1) / at_once);
  const auto kernel = call.d == 64 ? append<T, kInt8, 64> : append<T, kInt8, 128>;
  return start(kernel, blocks, kAppendThreads, 0, 1, call, stream);
}

template <typename Call>
const char* run(const Call& call, cudaStream_t stream) {
  if (attribute_of_device(cudaDevAttrComputeCapabilityMajor) < 8) {
    return "needs a GPU of compute capability 8.0 or newer: older ones have no mma.sync for this";
  }
  if (call.dtype == DECODE_FLOAT16)
    return call.is_int8 ? run<__half, true>(call, stream) : run<__half, false>(call, stream);
  return call.is_int8 ? run<__nv_bfloat16, true>(call, stream)
                      : run<__nv_bfloat16, false>(call, stream);
}

}  // namespace decode

void plan_on_gpu(AttendCall& call) {
  call.plan = make_plan(static_cast<int64_t>(call.batch) * call.key_heads, call.capacity,
                        call.is_int8, decode::attribute_of_device(cudaDevAttrMultiProcessorCount),
                        decode::attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                        decode::is_hopper());
}

const char* launch_attend(const AttendCall& call, cudaStream_t stream) {
  return decode::run(call, stream);
}

const char* launch_append(const AppendCall& call, cudaStream_t stream) {
  return decode::run(call, stream);
}
