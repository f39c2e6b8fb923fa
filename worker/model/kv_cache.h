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

// The latent cache of one data group. Each position of a slot has one row in
// each layer: the latent after its norm, then the rope key after rotation.
// Slots take blocks of kernels::kCacheBlockPositions positions from a common
// pool. Create reserves the memory of all blocks. A page becomes resident when
// it is first written. A row may be overwritten. Different threads may write
// different rows; nothing else is thread-safe.
class KvCache {
 public:
  // Makes a cache with `slots` slots of `context` positions. `dtype` is kF32,
  // kBf16 or kInt8.
  // Errors: RESOURCE_EXHAUSTED: the system refuses the memory. The message
  // names slots, positions and bytes.
  static absl::StatusOr<KvCache> Create(kernels::Dtype dtype, int layers,
                                        int kv_lora_rank, int rope_dim,
                                        int slots, int context);

  // Returns the bytes that Create reserves.
  static uint64_t Bytes(kernels::Dtype dtype, int layers, int kv_lora_rank,
                        int rope_dim, int slots, int context);

  // Gives `slot` the blocks that it lacks for positions [0, positions).
  // Requires positions <= context().
  void Extend(int slot, int positions);
  // Gives the blocks of `slot` back to the pool.
  void Release(int slot);
  // Zeroes the blocks of `slot`. A kernel multiplies rows of a block that it
  // masks by 0, so a NaN must not stay for the next owner of the block.
  void Clear(int slot);

  // Rounds `row` [kv_lora_rank + rope_dim] f32 to the cache's dtype and stores
  // it.
  void Write(int slot, int layer, int64_t position, const float* row);

  // Copies a row that kernels::StoreLatentRow has made into the cache.
  void WriteStored(int slot, int layer, int64_t position, const char* row);

  // Returns pointers to one layer's part of each block of `slot`, by ascending
  // position. The span is valid until the next Blocks call for `slot`.
  absl::Span<const char* const> Blocks(int slot, int layer);

  const kernels::LatentRowFormat& format() const { return format_; }

  // Bytes of the whole cache.
  uint64_t bytes() const { return buffer_.size(); }
  // Bytes of one row: one position in one layer.
  uint64_t row_bytes() const {
    return layer_bytes_ / kernels::kCacheBlockPositions;
  }
  int context() const { return context_; }  // Positions in each slot.

 private:
  // `buffer` has the size that Bytes returns for the other arguments.
  KvCache(kernels::LatentRowFormat format, int layers, int slots, int context,
          kernels::AlignedBuffer buffer);

  char* Row(int slot, int layer, int64_t position);

  const kernels::LatentRowFormat format_;
  const int context_;
  const uint64_t layer_bytes_;  // One layer of a block.
  const uint64_t block_bytes_;  // All layers of a block.
  kernels::AlignedBuffer buffer_;
  std::vector<char*> free_;                      // Blocks of no slot.
  std::vector<std::vector<char*>> slots_;        // Blocks, by slot.
  std::vector<std::vector<const char*>> views_;  // Results of Blocks, by slot.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_KV_CACHE_H_
