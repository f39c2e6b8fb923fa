// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MODEL_KV_CACHE_H_
#define RINGFLEET_WORKER_MODEL_KV_CACHE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/aligned_buffer.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/dtype.h"

namespace ringfleet::worker {

// The latent cache of one data group. Every layer and position has a row: the
// latent after its norm, then the rope key after rotation. Slots take blocks of
// kernels::kCacheBlockPositions positions from a common pool. Create reserves
// the memory, which becomes resident as it is written. Rows are keyed by
// position, so a row may be written again. Not thread-safe, except that
// different rows may be written by different threads.
class KvCache {
 public:
  // `dtype` is kF32, kBf16 or kInt8; `context` is positions a slot.
  // Errors: RESOURCE_EXHAUSTED names the size that the system refuses.
  static absl::StatusOr<KvCache> Create(kernels::Dtype dtype, int layers,
                                        int kv_lora_rank, int rope_dim,
                                        int slots, int context);

  // Returns the bytes that Create reserves.
  static uint64_t Bytes(kernels::Dtype dtype, int layers, int kv_lora_rank,
                        int rope_dim, int slots, int context);

  // Gives `slot` blocks for positions [0, positions); positions <= context.
  void Extend(int slot, int positions);
  // Takes the blocks of `slot` back.
  void Release(int slot);
  // Zeroes the blocks of `slot`. A kernel multiplies rows of a block that it
  // masks by 0, so a NaN must not stay for the next owner of the block.
  void Clear(int slot);

  // Stores `row` [kv_lora_rank + rope_dim] f32, rounded to the cache's dtype.
  void Write(int slot, int layer, int64_t position, const float* row);

  // Stores a row that kernels::StoreLatentRow has made, as it is.
  void WriteStored(int slot, int layer, int64_t position, const char* row);

  // Returns the blocks of one layer of a slot, in the order of positions. Valid
  // until the next call for this slot.
  absl::Span<const char* const> Blocks(int slot, int layer);

  const kernels::LatentRowFormat& format() const { return format_; }

  uint64_t bytes() const { return buffer_.size(); }
  // Bytes of one position in one layer.
  uint64_t row_bytes() const {
    return layer_bytes_ / kernels::kCacheBlockPositions;
  }
  int context() const { return context_; }

 private:
  // `buffer` holds Bytes() of the other arguments.
  KvCache(kernels::LatentRowFormat format, int layers, int slots, int context,
          kernels::AlignedBuffer buffer);

  char* Row(int slot, int layer, int64_t position);

  const kernels::LatentRowFormat format_;
  const int context_;
  const uint64_t layer_bytes_;  // One layer of a block.
  const uint64_t block_bytes_;  // All layers of a block.
  kernels::AlignedBuffer buffer_;
  std::vector<char*> free_;                      // Blocks without a slot.
  std::vector<std::vector<char*>> slots_;        // Blocks by slot.
  std::vector<std::vector<const char*>> views_;  // Memory of Blocks, by slot.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_KV_CACHE_H_
