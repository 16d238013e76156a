// The launchers: which kernel for which dtype and size.
#include "append.cuh"
#include "attend.cuh"
#include "common/launch.cuh"

namespace decode {

template <typename AnyCall>
const char* start(void (*kernel)(AnyCall), Launch how, const AnyCall& call, cudaStream_t stream) {
  // All kernels ask for the same division of a multiprocessor's memory: a change of it has to wait
  // until the multiprocessor is idle. (For each call, as each device has its own settings.)
  const char* error = message_of(cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  how.is_early = has_hopper_code(kernel);
  return error != nullptr ? error : launch(kernel, how, stream, call);
}

// AnyCall: AttendCall or StepCall.
template <typename T, bool kInt8, int kColumns, typename AnyCall>
const char* run(const AnyCall& call, cudaStream_t stream) {
  const auto kernel =
      call.heads > 8 * call.key_heads   ? attend<Shape<T, kInt8, kColumns, 16>, AnyCall>
      : call.heads > 4 * call.key_heads ? attend<Shape<T, kInt8, kColumns, 8>, AnyCall>
                                        : attend<Shape<T, kInt8, kColumns, 4>, AnyCall>;
  const unsigned units = call.batch * call.key_heads, warps = call.plan.warps;
  const unsigned splits = call.plan.splits, cluster = call.plan.is_cluster ? splits : 1;
  const char* error = start(
      kernel, {units * splits, 32 * warps, size_t{warps} * kPipelineBytes, cluster}, call, stream);
  if (error != nullptr || splits == cluster) return error;
  const unsigned heads = call.batch * call.heads;
  const AttendCall& attends = call;
  return start(join<T, kColumns>, {heads, kJoiners * kColumns / 4}, attends, stream);
}

template <typename T, bool kInt8, int kColumns>
const char* run(const AppendCall& call, cudaStream_t stream) {
  const int rows = call.heads + 2 * call.key_heads, at_once = kAppendThreads * 16 / kColumns;
  const dim3 blocks(static_cast<unsigned>(call.batch) * call.tokens, divide_up(rows, at_once));
  return start(append<T, kInt8, kColumns>, {blocks, kAppendThreads}, call, stream);
}

template <typename T, typename AnyCall>
const char* run(const AnyCall& call, cudaStream_t stream) {
  if (call.cached == DECODE_INT8)
    return call.d == 64 ? run<T, true, 64>(call, stream) : run<T, true, 128>(call, stream);
  return call.d == 64 ? run<T, false, 64>(call, stream) : run<T, false, 128>(call, stream);
}

template <typename AnyCall>
const char* run_any(const AnyCall& call, cudaStream_t stream) {
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 8)
    return "needs a GPU of compute capability 8.0 or newer: older ones have no mma.sync for this";
  return call.dtype == DECODE_FLOAT16 ? run<__half>(call, stream)
                                      : run<__nv_bfloat16>(call, stream);
}

}  // namespace decode

int64_t plan_on_gpu(AttendCall& call) {
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int64_t units = static_cast<int64_t>(call.batch) * call.key_heads;
  const int row = call.d * (call.cached == DECODE_INT8 ? 1 : 2);
  const bool can_cluster = has_hopper_code(decode::join<__half, 64>);  // so it is with all of them
  call.plan = make_plan(units, call.capacity, row, processors, shared, can_cluster);
  if (call.plan.splits == 1 || call.plan.is_cluster) return 0;
  return static_cast<int64_t>(call.batch) * call.heads * call.plan.splits * (call.d + 2);
}

const char* run_on_gpu(const AttendCall& call, cudaStream_t stream) {
  return decode::run_any(call, stream);
}
const char* run_on_gpu(const StepCall& call, cudaStream_t stream) {
  return decode::run_any(call, stream);
}
const char* run_on_gpu(const AppendCall& call, cudaStream_t stream) {
  return decode::run_any(call, stream);
}
