// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/mla_task.h"

namespace ringfleet::kernels {
namespace {

// Hands out aligned parts of a thread's memory; from null, only counts.
class Parts {
 public:
  explicit Parts(char* memory) : memory_(memory) {}

  void* Take(size_t bytes) {
    char* part = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return part;
  }
  size_t used() const { return used_; }

 private:
  char* const memory_;
  size_t used_ = 0;
};

size_t Divide(const MlaKernels& kernels, const MlaScratchShape& shape,
              char* memory, MlaScratch* scratch) {
  const size_t bytes = kernels.element_bytes;
  Parts parts(memory);
  scratch->queries = parts.Take(PackedQueryElements(shape.key_dim) * bytes);
  scratch->stride_bytes =
      PaddedNumbers(std::max(shape.key_dim, shape.value_dim)) * bytes;
  scratch->rows_bytes = kCacheBlockPositions * scratch->stride_bytes;
  scratch->values_bytes =
      PackedValueElements(kCacheBlockPositions, shape.value_dim) * bytes;
  scratch->rows =
      static_cast<char*>(parts.Take(shape.blocks * scratch->rows_bytes));
  scratch->values =
      static_cast<char*>(parts.Take(shape.blocks * scratch->values_bytes));
  scratch->scores = static_cast<float*>(
      parts.Take(kCacheBlockPositions * kMaxLanes * sizeof(float)));
  scratch->probabilities = parts.Take(kCacheBlockPositions * kMaxLanes * bytes);
  return parts.used();
}

}  // namespace

MlaScratch::MlaScratch(const MlaKernels& kernels, const MlaScratchShape& shape,
                       char* memory) {
  Divide(kernels, shape, memory, this);
}

size_t MlaScratch::Bytes(const MlaKernels& kernels,
                         const MlaScratchShape& shape) {
  MlaScratch scratch(kernels, shape, nullptr);
  return Divide(kernels, shape, nullptr, &scratch);
}

void ForEachMlaTask(
    const MlaKernels& kernels, const MlaScratchShape& shape, size_t tasks,
    MlaWorkspace& workspace, ThreadPool& pool,
    absl::FunctionRef<void(size_t task, const MlaScratch& scratch)> body) {
  const size_t threads = static_cast<size_t>(pool.threads());
  const size_t bytes = MlaScratch::Bytes(kernels, shape);
  char* memory = GrowTo<char>(workspace.threads, threads * bytes);
  std::atomic<size_t> next{0};
  pool.ParallelFor(
      std::min(threads, tasks), /*grain=*/1, [&](size_t begin, size_t end) {
        const MlaScratch scratch(kernels, shape, memory + begin * bytes);
        for (;;) {
          const size_t task = next.fetch_add(1, std::memory_order_relaxed);
          if (task >= tasks) return;
          body(task, scratch);
        }
      });
}

}  // namespace ringfleet::kernels
