// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla_task.h"

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

size_t Divide(const MlaKernels& kernels, size_t key_dim, size_t value_dim,
              char* memory, MlaScratch* scratch) {
  const size_t bytes = kernels.element_bytes;
  Parts parts(memory);
  scratch->queries = parts.Take(PackedQueryElements(key_dim) * bytes);
  scratch->stride_bytes = PaddedNumbers(std::max(key_dim, value_dim)) * bytes;
  scratch->rows = parts.Take(kCacheBlockPositions * scratch->stride_bytes);
  scratch->values =
      parts.Take(PackedValueElements(kCacheBlockPositions, value_dim) * bytes);
  scratch->scores = static_cast<float*>(
      parts.Take(kCacheBlockPositions * kMaxLanes * sizeof(float)));
  scratch->weights = parts.Take(kCacheBlockPositions * kMaxLanes * bytes);
  return parts.used();
}

}  // namespace

MlaScratch::MlaScratch(const MlaKernels& kernels, size_t key_dim,
                       size_t value_dim, char* memory) {
  Divide(kernels, key_dim, value_dim, memory, this);
}

size_t MlaScratch::Bytes(const MlaKernels& kernels, size_t key_dim,
                         size_t value_dim) {
  MlaScratch scratch(kernels, key_dim, value_dim, nullptr);
  return Divide(kernels, key_dim, value_dim, nullptr, &scratch);
}

void ForEachMlaTask(
    const MlaKernels& kernels, size_t key_dim, size_t value_dim, size_t tasks,
    MlaWorkspace& workspace, ThreadPool& pool,
    absl::FunctionRef<void(size_t task, const MlaScratch& scratch)> body) {
  const size_t threads = static_cast<size_t>(pool.threads());
  const size_t bytes = MlaScratch::Bytes(kernels, key_dim, value_dim);
  char* memory = GrowTo<char>(workspace.threads, threads * bytes);
  std::atomic<size_t> next{0};
  pool.ParallelFor(
      std::min(threads, tasks), /*grain=*/1, [&](size_t begin, size_t end) {
        const MlaScratch scratch(kernels, key_dim, value_dim,
                                 memory + begin * bytes);
        for (;;) {
          const size_t task = next.fetch_add(1, std::memory_order_relaxed);
          if (task >= tasks) return;
          body(task, scratch);
        }
      });
}

}  // namespace ringfleet::kernels
