// The project's launcher through tvm-ffi: a function of DLPack tensors that any framework can call.
// The library needs libtvm_ffi.so, and neither torch nor Python.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>

#include "add2.h"

using tvm::ffi::TensorView;

void add(TensorView c, TensorView a, TensorView b) {
  for (const TensorView& x : {c, a, b}) {
    const DLDataType dtype = x.dtype();
    const bool is_float32 = dtype.code == kDLFloat && dtype.bits == 32 && dtype.lanes == 1;
    const bool fits = x.device().device_type == kDLCUDA && is_float32 && x.IsContiguous();
    if (!fits || x.numel() != c.numel() || x.device().device_id != c.device().device_id) {
      TVM_FFI_THROW(ValueError)
          << "add: expected c, a and b contiguous, float32, of one size and GPU";
    }
  }
  const tvm::ffi::CUDADeviceGuard guard(c.device().device_id);
  void* stream = TVMFFIEnvGetStream(kDLCUDA, c.device().device_id);  // torch's current one
  const char* error = launch_add2_cuda(c.data_ptr(), a.data_ptr(), b.data_ptr(), c.numel(),
                                       ADD2_FLOAT32, static_cast<CUstream_st*>(stream));
  if (error) TVM_FFI_THROW(RuntimeError) << "add: " << error;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add, add);
