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

// The latent cache of one data group: rows of (latent after its norm, rope key
// after rotation) for every layer and position, in blocks of
// kernels::kCacheBlockPositions that slots take from a common pool. Memory is
// reserved by Create and becomes resident as it is written. Rows are
// keyed by position: writing one again is harmless. Not thread-safe, but
// distinct rows may be written from different threads.
class KvCache {
 public:
  // `dtype` is kF32, kBf16 or kInt8. RESOURCE_EXHAUSTED, with the size: the
  // system has no memory for it.
  static absl::StatusOr<KvCache> Create(kernels::Dtype dtype, int layers,
                                        int kv_lora_rank, int rope_dim,
                                        int slots, int context);

  static uint64_t Bytes(kernels::Dtype dtype, int layers, int kv_lora_rank,
                        int rope_dim, int slots, int context);

  // Gives `slot` blocks for positions [0, positions); positions <= context.
  void Extend(int slot, int positions);
  // Returns the blocks of `slot`.
  void Release(int slot);

  // `row` [kv_lora_rank + rope_dim] f32, rounded to the cache's dtype.
  void Write(int slot, int layer, int64_t position, const float* row);

  // A row that StoreLatentRow made, as it is.
  void WriteStored(int slot, int layer, int64_t position, const char* row);

  // The blocks of one layer of a slot, valid until the next call for this slot.
  absl::Span<const char* const> Blocks(int slot, int layer);

  const kernels::LatentRowFormat& format() const { return format_; }

  uint64_t bytes() const { return buffer_.size(); }
  // Of one position in one layer.
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
  const uint64_t layer_bytes_;  // Of one layer in a block.
  const uint64_t block_bytes_;  // Of all layers.
  kernels::AlignedBuffer buffer_;
  std::vector<char*> free_;                      // Blocks nobody has.
  std::vector<std::vector<char*>> slots_;        // Blocks by slot, by position.
  std::vector<std::vector<const char*>> views_;  // What Blocks returned.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_KV_CACHE_H_
