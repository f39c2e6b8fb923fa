// SPDX-License-Identifier: Apache-2.0
// What the absorbed and the materialised form share in dividing their work.
#ifndef RINGFLEET_KERNELS_MLA_TASK_H_
#define RINGFLEET_KERNELS_MLA_TASK_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/isa.h"
#include "kernels/latent_cache.h"
#include "kernels/mla_block.h"
#include "kernels/mla_workspace.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

inline const MlaKernels& MlaKernelsFor(Dtype cache_dtype) {
  const Isa isa = CurrentIsa();
  if (cache_dtype == Dtype::kF32 || isa < Isa::kAvx512Bf16) {
    return MlaKernelsF32();
  }
  return isa >= Isa::kAmx ? MlaKernelsAmx() : MlaKernelsBf16();
}

// Positions of block `block` that a query at `position` sees.
inline size_t VisibleInBlock(int64_t position, size_t block) {
  const size_t visible = static_cast<size_t>(position) + 1;
  const size_t begin = block * kCacheBlockPositions;
  return visible <= begin ? 0 : std::min(visible - begin, kCacheBlockPositions);
}

// The scratch of a thread that attends to blocks of keys [key_dim] and values
// [value_dim].
struct MlaScratch {
  void* queries = nullptr;
  void* rows = nullptr;  // Of a block, stride_bytes apart.
  size_t stride_bytes = 0;
  void* values = nullptr;
  float* scores = nullptr;
  void* weights = nullptr;

  // `memory` is aligned to 64 bytes and as large as Bytes().
  MlaScratch(const MlaKernels& kernels, size_t key_dim, size_t value_dim,
             char* memory);
  static size_t Bytes(const MlaKernels& kernels, size_t key_dim,
                      size_t value_dim);
};

// Calls body(task, scratch) for every task, in order of their numbers, each on
// the next thread that is free.
void ForEachMlaTask(
    const MlaKernels& kernels, size_t key_dim, size_t value_dim, size_t tasks,
    MlaWorkspace& workspace, ThreadPool& pool,
    absl::FunctionRef<void(size_t task, const MlaScratch& scratch)> body);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_MLA_TASK_H_
