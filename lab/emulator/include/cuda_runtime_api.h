// The CUDA runtime as far as launchers ask it: errors, memory, what the device is, launches by
// function. Kernels run as they are launched, so nothing is asynchronous.
#pragma once
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "emulator/launch.h"

#define CUDART_VERSION 13000
#define CUDART_CB

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevicePointer = 17,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorAssert = 710,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotPermitted = 800,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999,
};
typedef enum cudaError cudaError_t;
template <>
constexpr char emulator::letter<cudaError>() {
  return 'e';
}
typedef struct CUevent_st* cudaEvent_t;

inline cudaError_t emulator_result(cudaError_t error) {
  emulator_set_error(error);
  return error;
}
inline cudaError_t cudaGetLastError() { return cudaError_t(emulator_last_error(1)); }
inline cudaError_t cudaPeekAtLastError() { return cudaError_t(emulator_last_error(0)); }
inline const char* cudaGetErrorString(cudaError_t error) { return emulator_error_text(error); }
inline const char* cudaGetErrorName(cudaError_t error) { return emulator_error_text(error); }

// ---- Streams, events, the device.
#define cudaStreamDefault 0
#define cudaStreamNonBlocking 1
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
inline cudaError_t cudaDeviceSynchronize() { return cudaError_t(emulator_synchronize()); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) {
  return cudaSuccess;
}
#define cudaEventDefault 0
#define cudaEventBlockingSync 1
#define cudaEventDisableTiming 2
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = nullptr, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  return *ms = 0, cudaSuccess;  // there is no time here
}
// All earlier work of the stream has been done.
inline cudaError_t cudaLaunchHostFunc(cudaStream_t, void (*function)(void*), void* data) {
  return function(data), cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : emulator_result(cudaErrorInvalidDevice);
}
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
enum cudaLimit { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize };
inline cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
inline cudaError_t cudaProfilerStart() { return cudaSuccess; }
inline cudaError_t cudaProfilerStop() { return cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMaxRegistersPerBlock = 12,
  cudaDevAttrClockRate = 13,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrCooperativeLaunch = 95,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMaxBlocksPerMultiprocessor = 106,
  cudaDevAttrClusterLaunch = 120,
};
// An H100 with one multiprocessor, as one block runs at a time.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 * 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = 65536;
      break;
    case cudaDevAttrClockRate:
      *value = 1000000;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 1;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = 228 * 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 * 1024;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = 32;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
  int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], major, minor;
  int multiProcessorCount, maxThreadsPerMultiProcessor, l2CacheSize, memoryBusWidth;
  size_t totalConstMem;
  int regsPerMultiprocessor, maxBlocksPerMultiProcessor, concurrentKernels, asyncEngineCount;
  int canMapHostMemory, managedMemory, unifiedAddressing, ECCEnabled, cooperativeLaunch;
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) {
  *found = {"emulated GPU",
            size_t(1) << 34,
            48 * 1024,
            227 * 1024,
            228 * 1024,
            65536,
            32,
            1024,
            {1024, 1024, 64},
            {INT32_MAX, 65535, 65535},
            9,
            0,
            1,
            2048,
            50 << 20,
            5120,
            64 * 1024,
            65536,
            32,
            1,
            3,
            1,
            1,
            1,
            1,
            0};
  return cudaSuccess;
}

// ---- Memory.
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
// They are inlined, so that the emulator sees the line of the user that calls them.
template <typename T>
EMULATOR_INLINE cudaError_t cudaMalloc(T** memory, size_t bytes) {
  *memory = static_cast<T*>(emulator_allocate(bytes, true));
  return *memory ? cudaSuccess : emulator_result(cudaErrorMemoryAllocation);
}
// Each row begins at a multiple of 512 bytes, as on today's GPUs.
template <typename T>
EMULATOR_INLINE cudaError_t cudaMallocPitch(T** memory, size_t* pitch, size_t width,
                                            size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(memory, *pitch * height);
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaMallocAsync(T** memory, size_t bytes, cudaStream_t) {
  return cudaMalloc(memory, bytes);
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaMallocManaged(T** memory, size_t bytes, unsigned = 1) {
  *memory = static_cast<T*>(emulator_allocate(bytes, false));
  return *memory ? cudaSuccess : emulator_result(cudaErrorMemoryAllocation);
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaMallocHost(T** memory, size_t bytes, unsigned = 0) {
  return cudaMallocManaged(memory, bytes);
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaHostAlloc(T** memory, size_t bytes, unsigned) {
  return cudaMallocManaged(memory, bytes);
}
enum { cudaHostAllocDefault, cudaHostAllocPortable, cudaHostAllocMapped };
enum { cudaHostAllocWriteCombined = 4, cudaMemAttachGlobal = 1 };
template <typename T>
cudaError_t cudaHostGetDevicePointer(T** memory, void* host, unsigned) {
  return *memory = static_cast<T*>(host), cudaSuccess;
}
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1, cudaMemLocationTypeHost };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
constexpr int cudaCpuDeviceId = -1;
// Before CUDA 13, and since then.
inline cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t = nullptr) {
  return cudaSuccess;
}
inline cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned,
                                        cudaStream_t = nullptr) {
  return cudaSuccess;
}
enum cudaMemoryAdvise {
  cudaMemAdviseSetReadMostly = 1,
  cudaMemAdviseUnsetReadMostly,
  cudaMemAdviseSetPreferredLocation,
  cudaMemAdviseUnsetPreferredLocation,
  cudaMemAdviseSetAccessedBy,
  cudaMemAdviseUnsetAccessedBy,
};
inline cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
inline cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return cudaSuccess;
}
// Of 16 GB, as many as cudaGetDeviceProperties() says; none is counted as taken.
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = size_t(1) << 34, cudaSuccess;
}
EMULATOR_INLINE cudaError_t cudaFree(void* memory) {
  return emulator_result(cudaError_t(emulator_free(memory)));
}
EMULATOR_INLINE cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFree(memory); }
EMULATOR_INLINE cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
EMULATOR_INLINE cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                                       cudaMemcpyKind kind) {
  return emulator_result(cudaError_t(emulator_memory_copy(to, from, bytes, kind, "cudaMemcpy")));
}
EMULATOR_INLINE cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                            cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return emulator_result(
      cudaError_t(emulator_memory_copy(to, from, bytes, kind, "cudaMemcpyAsync")));
}
// The same for each of `height` rows of `width` bytes.
EMULATOR_INLINE cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from,
                                         size_t from_pitch, size_t width, size_t height,
                                         cudaMemcpyKind kind) {
  const size_t pitch = to_pitch < from_pitch ? to_pitch : from_pitch;
  if (width > pitch)
    return emulator_result(cudaError_t(emulator_refuse_pitch(width, pitch, "cudaMemcpy2D")));
  int error = cudaSuccess;
  for (size_t i = 0; i < height && error == cudaSuccess; ++i) {
    error = emulator_memory_copy(static_cast<char*>(to) + i * to_pitch,
                                 static_cast<const char*>(from) + i * from_pitch, width, kind,
                                 "cudaMemcpy2D");
  }
  return emulator_result(cudaError_t(error));
}
EMULATOR_INLINE cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                                              size_t from_pitch, size_t width, size_t height,
                                              cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
EMULATOR_INLINE cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return emulator_result(cudaError_t(emulator_memory_set(to, value, bytes, "cudaMemset")));
}
EMULATOR_INLINE cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                                            cudaStream_t = nullptr) {
  return emulator_result(cudaError_t(emulator_memory_set(to, value, bytes, "cudaMemsetAsync")));
}
EMULATOR_INLINE cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width,
                                         size_t height) {
  if (width > pitch)
    return emulator_result(cudaError_t(emulator_refuse_pitch(width, pitch, "cudaMemset2D")));
  int error = cudaSuccess;
  for (size_t i = 0; i < height && error == cudaSuccess; ++i)
    error = emulator_memory_set(static_cast<char*>(to) + i * pitch, value, width, "cudaMemset2D");
  return emulator_result(cudaError_t(error));
}
EMULATOR_INLINE cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width,
                                              size_t height, cudaStream_t = nullptr) {
  return cudaMemset2D(to, pitch, value, width, height);
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes,
                                               size_t offset = 0,
                                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
  char* to = const_cast<char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset;
  return emulator_result(
      cudaError_t(emulator_memory_copy(to, from, bytes, cudaMemcpyDefault, "cudaMemcpyToSymbol")));
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes,
                                                    size_t offset, cudaMemcpyKind kind,
                                                    cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes,
                                                 size_t offset = 0,
                                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  const char* from =
      const_cast<const char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset;
  return emulator_result(cudaError_t(
      emulator_memory_copy(to, from, bytes, cudaMemcpyDefault, "cudaMemcpyFromSymbol")));
}
template <typename T>
EMULATOR_INLINE cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& symbol, size_t bytes,
                                                      size_t offset, cudaMemcpyKind kind,
                                                      cudaStream_t = nullptr) {
  return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}
template <typename T>
cudaError_t cudaGetSymbolAddress(void** address, const T& symbol) {
  *address = const_cast<void*>(reinterpret_cast<const volatile void*>(&symbol));
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaGetSymbolSize(size_t* bytes, const T&) {
  return *bytes = sizeof(T), cudaSuccess;
}

// ---- Kernels by function.
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
};
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1 };
struct cudaFuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA;
  int maxDynamicSharedSizeBytes, preferredShmemCarveout;
};
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute which, int value) {
  if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > 227 * 1024) return emulator_result(cudaErrorInvalidValue);
  emulator_largest_shared(reinterpret_cast<const void*>(kernel), value);
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetCacheConfig(Kernel*, cudaFuncCache) {
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, Kernel* kernel) {
  const auto most = int(emulator_largest_shared(reinterpret_cast<const void*>(kernel), -1));
  *found = {0, 0, 0, 1024, 32, 90, 90, 0, most, -1};
  return cudaSuccess;
}
// As if registers were no limit.
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int threads,
                                                          size_t shared) {
  if (threads < 1) return emulator_result(cudaErrorInvalidValue);
  const size_t by_shared = shared ? 228 * 1024 / (shared + 1024) : 32;
  const size_t by_threads = threads > 1024 ? 0 : 2048 / ((threads + 31) / 32 * 32);
  *blocks = int(by_shared < by_threads ? by_shared : by_threads < 32 ? by_threads : 32);
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, Kernel*, size_t = 0,
                                               int most = 0) {
  *block = most ? most : 1024;
  *grid = 2048 / *block;
  return cudaSuccess;
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8,
};
union cudaLaunchAttributeValue {
  char pad[64];
  int cooperative, priority, programmaticStreamSerializationAllowed;
  struct {
    unsigned x, y, z;
  } clusterDim;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <typename... Parameters, typename... Arguments>
EMULATOR_UNWATCHED cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* how,
                                                  void (*kernel)(Parameters...),
                                                  Arguments&&... arguments) {
  emulator::LaunchConfig config =
      emulator::Configuration(how->gridDim, how->blockDim, how->dynamicSmemBytes)
          .as_config("", nullptr, 0);
  config.kernel = reinterpret_cast<const void*>(kernel);
  for (unsigned i = 0; i < how->numAttrs; ++i) {
    const auto& value = how->attrs[i].val;
    if (how->attrs[i].id == cudaLaunchAttributeClusterDimension)
      config.cluster = value.clusterDim.x * value.clusterDim.y * value.clusterDim.z;
  }
  const auto call = [kernel](auto&... a) EMULATOR_UNWATCHED { kernel(a...); };
  emulator::Body<decltype(call), Parameters...> body{call,
                                                     {{static_cast<Parameters>(arguments)}...}};
  emulator_launch(&config, &body.run, &body);
  return cudaError_t(emulator_last_error(0));
}
template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared = 0, cudaStream_t = nullptr) {
  emulator::LaunchConfig config =
      emulator::Configuration(grid, block, shared).as_config("", nullptr, 0);
  config.kernel = reinterpret_cast<const void*>(kernel);
  struct Call {
    void (*kernel)(Parameters...);
    void** arguments;
  } call = {kernel, arguments};
  const auto body = [](void* data) EMULATOR_UNWATCHED {
    const auto& call = *static_cast<Call*>(data);
    emulator::Untyped<void, Parameters...>::call(reinterpret_cast<const void*>(call.kernel),
                                                 call.arguments, nullptr);
  };
  emulator_launch(&config, body, &call);
  return cudaError_t(emulator_last_error(0));
}
// A kernel by its address, which must be no template: the emulator knows it by its name.
inline cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                    size_t shared = 0, cudaStream_t = nullptr) {
  struct Call {
    const void* kernel;
    void** arguments;
    emulator::UntypedCall* call;
  } call = {kernel, arguments, emulator_kernel_call(kernel)};
  if (!call.call) {
    emulator_needs_gpu("cudaLaunchKernel() of a template by its address, without its parameters");
    return emulator_result(cudaErrorInvalidDeviceFunction);
  }
  emulator::LaunchConfig config =
      emulator::Configuration(grid, block, shared).as_config("", nullptr, 0);
  config.kernel = kernel;
  const auto body = [](void* data) EMULATOR_UNWATCHED {
    const auto& call = *static_cast<Call*>(data);
    call.call(call.kernel, call.arguments, nullptr);
  };
  emulator_launch(&config, body, &call);
  return cudaError_t(emulator_last_error(0));
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, Kernel*, const cudaLaunchConfig_t*) {
  *clusters = 0;
  return emulator_result(cudaErrorNotSupported);
}
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess,
  cudaDriverEntryPointSymbolNotFound
};
enum { cudaEnableDefault = 0 };
// Such as cuTensorMapEncodeTiled, which describes a tensor to TMA.
inline cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** found, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result = nullptr) {
  emulator_needs_gpu(name);
  *found = nullptr;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
