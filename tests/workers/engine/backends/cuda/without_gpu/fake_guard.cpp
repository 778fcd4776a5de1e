// Lets a torch without CUDA index and move tensors that say they are on a GPU but have no memory.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {

struct FakeGuard final : NoOpDeviceGuardImpl<DeviceType::CUDA> {
  DeviceIndex deviceCount() const noexcept override { return 1; }
};

C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)

}  // namespace c10::impl
