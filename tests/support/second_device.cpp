// A second device that is the CPU under another name, to find code that takes all tensors to be on one.
//
// Tensors of it have memory of their own. Operations run on the CPU, one by one; as on a GPU, one that is
// given tensors of two devices fails, unless the other device's are single numbers or indices. It may be told to
// refuse numbers of 64 bits, as Apple's GPUs do.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <set>
#include <string>

namespace {

constexpr auto OTHER = c10::DeviceType::PrivateUse1;
bool doubles = true;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<OTHER> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return {OTHER, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return {OTHER, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return only(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only(); }
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(OTHER, 0)); }
  // Nothing waits: each operation is complete when it returns.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = c10::alloc_cpu(size);
    return {data, data, &c10::free_cpu, c10::Device(OTHER, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};
Memory memory;
REGISTER_ALLOCATOR(OTHER, &memory)

struct Generator final : at::CPUGeneratorImpl {
  Generator() {
    device_ = c10::Device(OTHER, 0);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto data = memory.allocate(size);
    std::memcpy(data.get(), storage.data(), std::min(size, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(size);
  }
};

// The same memory, as the CPU's.
at::Tensor seen(const at::Tensor& own) {
  if (own.device().type() != OTHER) return own;
  auto options = at::TensorOptions().dtype(own.dtype()).device(at::kCPU);
  return at::from_blob(own.data_ptr(), own.sizes(), own.strides(), options);
}

void check(at::ScalarType type) {
  TORCH_CHECK_TYPE(
      doubles || (type != at::kDouble && type != at::kComplexDouble), "this device has no numbers of 64 bits");
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  auto type = dtype.value_or(c10::typeMetaToScalarType(at::get_default_dtype()));
  check(type);
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type, format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  auto type = dtype.value_or(c10::typeMetaToScalarType(at::get_default_dtype()));
  check(type);
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  seen(to).copy_(seen(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& own) { return seen(own).item(); }

const at::Tensor& resize(const at::Tensor& own, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  at::native::resize_impl_cpu_(own.unsafeGetTensorImpl(), C10_AS_INTARRAYREF_SLOW(size), std::nullopt, true);
  return own;
}

at::Tensor& set_storage(at::Tensor& own, c10::Storage storage, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(own, storage, offset, size, stride);
}

at::Tensor& set_whole(at::Tensor& own, c10::Storage storage) { return at::native::set_(own, storage); }

at::Tensor there(const at::Tensor& result) { return result.to(at::Device(OTHER, 0)); }

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b,
                       c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
  TORCH_CHECK(x.device() == w.device(), "convolution of tensors of ", x.device(), " and ", w.device());
  auto bias = b.has_value() && b->defined() ? std::optional(b->cpu()) : std::nullopt;
  return there(at::convolution(x.cpu(), w.cpu(), bias, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& g, const at::Tensor& x, const at::Tensor& w, c10::IntArrayRef stride, c10::IntArrayRef padding,
    c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  TORCH_CHECK(g.device() == x.device() && x.device() == w.device(), "convolution of tensors of several devices");
  auto bias = wanted[2] ? at::OptionalIntArrayRef(c10::IntArrayRef(w.sizes().begin() + transposed, 1)) : std::nullopt;
  auto [dx, dw, db] = at::convolution_backward(
      g.cpu(), x.cpu(), w.cpu(), bias, stride, padding, dilation, transposed, output_padding, groups, wanted);
  return {dx.defined() ? there(dx) : dx, dw.defined() ? there(dw) : dw, db.defined() ? there(db) : db};
}

// Those that read indices of another device too, as on a GPU.
const std::set<std::string> INDEXING = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  auto checked = [&](const at::Tensor& each) {
    TORCH_CHECK(!each.defined() || each.device().type() == OTHER || each.dim() == 0 || INDEXING.count(name),
                "Expected all tensors to be on the same device: ", name, " got one of ", each.device());
  };
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) checked(value.toTensor());
    if (value.isTensorList()) for (const at::Tensor& each : value.toTensorList()) checked(each);
    if (value.isDevice()) TORCH_CHECK(value.toDevice().type() == OTHER, name, " makes tensors elsewhere");
  }
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

void refuse_doubles(bool refused) { doubles = !refused; }

void start() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

TORCH_LIBRARY(second_device, m) {
  m.def("refuse_doubles", &refuse_doubles);
  m.def("start", &start);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace
