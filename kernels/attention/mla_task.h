// SPDX-License-Identifier: Apache-2.0
// Tasks and scratch memory of both the absorbed and the materialised form.
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_TASK_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_TASK_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_block.h"
#include "kernels/attention/mla_workspace.h"
#include "kernels/isa.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

inline const MlaKernels& MlaKernelsFor(Dtype cache_dtype) {
  const Isa isa = CurrentIsa();
  if (cache_dtype == Dtype::kF32 || isa < Isa::kAvx512Bf16) {
    return MlaKernelsF32();
  }
  return isa >= Isa::kAmx ? MlaKernelsAmx() : MlaKernelsBf16();
}

// Returns how many positions of block `block` a query at `position` sees.
inline size_t VisibleInBlock(int64_t position, size_t block) {
  const size_t visible = static_cast<size_t>(position) + 1;
  const size_t begin = block * kCacheBlockPositions;
  return visible <= begin ? 0 : std::min(visible - begin, kCacheBlockPositions);
}

// Sizes of the scratch for keys [key_dim] and values [value_dim] of `blocks`
// blocks at a time.
struct MlaScratchShape {
  size_t key_dim = 0;
  size_t value_dim = 0;
  size_t blocks = 1;
};

// The scratch of a thread that attends.
struct MlaScratch {
  void* queries = nullptr;
  size_t stride_bytes = 0;  // From row to row.
  float* scores = nullptr;
  void* probabilities = nullptr;
  // The first block; Rows and Values have the others.
  char* rows = nullptr;
  char* values = nullptr;
  size_t rows_bytes = 0;  // From block to block.
  size_t values_bytes = 0;

  void* Rows(size_t block) const { return rows + block * rows_bytes; }
  void* Values(size_t block) const { return values + block * values_bytes; }

  // `memory` is aligned to 64 bytes and as large as Bytes().
  MlaScratch(const MlaKernels& kernels, const MlaScratchShape& shape,
             char* memory);
  static size_t Bytes(const MlaKernels& kernels, const MlaScratchShape& shape);
};

// Calls body(task, scratch) for every task. Free threads take tasks in the
// order of their numbers.
void ForEachMlaTask(
    const MlaKernels& kernels, const MlaScratchShape& shape, size_t tasks,
    MlaWorkspace& workspace, ThreadPool& pool,
    absl::FunctionRef<void(size_t task, const MlaScratch& scratch)> body);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_TASK_H_
