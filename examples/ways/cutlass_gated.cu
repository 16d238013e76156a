// gated_linear by CUTLASS: two products, the second with silu(sums) * C as its epilogue, where C is
// the first one's result. Hopper only. cutlass_gated.py builds it.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>
#include <stdexcept>
#include <string>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// torch declares it where USE_CUDA is defined.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace {

using cute::_1, cute::_128, cute::_2, cute::_256, cute::_64, cute::make_shape, cute::Shape;
namespace epilogue = cutlass::epilogue;
using bf16 = cutlass::bfloat16_t;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;  // B^T of a row-major B
using Tile = Shape<_128, _256, _64>;
using Cluster = Shape<_2, _1, _1>;
constexpr int kAlign = 8;  // elements: TMA takes 16 bytes
constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;

// An epilogue is a tree: a node names a function, then the nodes that it takes its arguments from.
using Silu = epilogue::fusion::Sm90EVT<
    epilogue::fusion::Sm90Compute<cutlass::epilogue::thread::SiLu, float, float, kRound>,
    epilogue::fusion::Sm90AccFetch>;
using SiluTimesC = epilogue::fusion::Sm90EVT<
    epilogue::fusion::Sm90Compute<cutlass::multiplies, bf16, float, kRound>, Silu,
    epilogue::fusion::Sm90SrcFetch<bf16>>;
using Plain = epilogue::fusion::Sm90EVT<
    epilogue::fusion::Sm90Compute<cutlass::epilogue::thread::Identity, bf16, float, kRound>,
    epilogue::fusion::Sm90AccFetch>;

// The builders choose the copies, the number of stages and the layouts in shared memory.
template <class Fusion>
struct Product {
  using Epilogue = typename epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      epilogue::collective::EpilogueTileAuto, float, float, bf16, Row, kAlign, bf16, Row, kAlign,
      epilogue::TmaWarpSpecializedCooperative, Fusion>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, bf16, Row, kAlign, bf16, Column, kAlign,
      float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<cutlass::gemm::kernel::GemmUniversal<
      Shape<int, int, int, int>, Mainloop, Epilogue, cutlass::gemm::PersistentScheduler>>;
};

const bf16* in(const Tensor& x) { return static_cast<const bf16*>(x.const_data_ptr()); }

// y = epilogue(x w^T, c). All are contiguous.
template <class Fusion>
void run(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& c) {
  using Gemm = typename Product<Fusion>::Gemm;
  using Kernel = typename Gemm::GemmKernel;
  const int m = int(x.size(0)), n = int(w.size(0)), k = int(x.size(1));
  const auto stride = [](auto which, int rows, int columns) {
    return cutlass::make_cute_packed_stride(which, make_shape(rows, columns, 1));
  };
  const auto out = stride(typename Kernel::StrideD{}, m, n);
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {m, n, k, 1},
      {in(x), stride(typename Kernel::StrideA{}, m, k), in(w),
       stride(typename Kernel::StrideB{}, n, k)},
      {{}, in(c), out, static_cast<bf16*>(y.mutable_data_ptr()), out}};
  arguments.hw_info = cutlass::KernelHardwareInfo::make_kernel_hardware_info<Kernel>();
  // Freed when this function returns; torch gives the memory only to later work on this stream.
  const int64_t bytes[] = {int64_t(Gemm::get_workspace_size(arguments))};
  const Tensor workspace = torch::stable::new_empty(x, bytes, ScalarType::Byte);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  Gemm gemm;
  auto status = gemm.can_implement(arguments);
  if (status == cutlass::Status::kSuccess) {
    status = gemm.run(arguments, workspace.mutable_data_ptr(), static_cast<cudaStream_t>(stream));
  }
  if (status != cutlass::Status::kSuccess) {
    throw std::runtime_error(std::string("cutlass_gated: ") + cutlassGetStatusString(status));
  }
}

// silu(x wg^T) * (x wu^T)
Tensor gated_linear(const Tensor& x, const Tensor& wg, const Tensor& wu) {
  for (const Tensor* each : {&x, &wg, &wu}) {
    const bool fits = each->dim() == 2 && each->size(1) == x.size(1) && each->is_contiguous() &&
                      each->scalar_type() == ScalarType::BFloat16 && each->device() == x.device();
    if (!fits || wg.size(0) != wu.size(0)) {
      throw std::runtime_error(
          "cutlass_gated: expected contiguous bfloat16 on one GPU: [M, K], [H, K], [H, K]");
    }
  }
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const int64_t shape[] = {x.size(0), wg.size(0)};
  const Tensor up = torch::stable::new_empty(x, shape), y = torch::stable::new_empty(x, shape);
  run<Plain>(up, x, wu, up);
  run<SiluTimesC>(y, x, wg, up);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(cutlass_gated, m) {
  m.def("gated_linear(Tensor x, Tensor wg, Tensor wu) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(cutlass_gated, CUDA, m) {
  m.impl("gated_linear", TORCH_BOX(&gated_linear));
}
