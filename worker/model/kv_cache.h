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

// The size of a cache.
struct CacheSize {
  int slots = 1;
  int context = 1;  // Most positions of a slot.
  int blocks = 1;   // Blocks of all slots together.
};

// The latent cache of one data group. Each position of a slot has one row in
// each layer: the latent after its norm, then the rope key after rotation. A
// slot's rows lie in blocks of kernels::kCacheBlockPositions positions, in the
// order in which the slot got them. Create reserves the memory of all blocks. A
// page becomes resident when it is first written. A row may be overwritten if
// no other slot has its block. A block keeps its rows after its last slot,
// until it is granted again. Different threads may write different rows;
// nothing else is thread-safe.
class KvCache {
 public:
  // Makes a cache whose blocks no slot has. `dtype` is kF32, kBf16 or kInt8.
  // Errors: RESOURCE_EXHAUSTED: the system refuses the memory. The message
  // names blocks and bytes.
  static absl::StatusOr<KvCache> Create(kernels::Dtype dtype, int layers,
                                        int kv_lora_rank, int rope_dim,
                                        const CacheSize& size);

  // Returns the bytes that Create reserves for `blocks` blocks.
  static uint64_t Bytes(kernels::Dtype dtype, int layers, int kv_lora_rank,
                        int rope_dim, int64_t blocks);

  // Zeroes `block` and makes it the last block of `slot`. A kernel multiplies
  // rows of a block that it masks by 0, so no NaN of an earlier owner may stay.
  // Requires block < blocks() and that no slot has the block.
  void Grant(int slot, int block);
  // Makes `block` the last block of `slot`, with its rows. Requires
  // written(block).
  void Share(int slot, int block);
  // Copies the first `positions` rows of `from`, in all layers, to the last
  // block of `slot`. Requires written(from) and at most a block of positions.
  void Copy(int from, int positions, int slot);
  // Takes all blocks from `slot`.
  void Release(int slot);

  // Returns whether a slot has the block.
  bool taken(int block) const { return slots_of_[block] > 0; }
  // Returns whether a slot has been granted the block.
  bool written(int block) const { return written_[block] != 0; }
  // Returns the positions in the blocks of `slot`.
  int64_t positions(int slot) const {
    return static_cast<int64_t>(slots_[slot].size()) *
           kernels::kCacheBlockPositions;
  }

  // Rounds `row` [kv_lora_rank + rope_dim] f32 to the cache's dtype and stores
  // it.
  void Write(int slot, int layer, int64_t position, const float* row);

  // Fills the first `positions` rows of `slot`, in all layers, with random
  // values of variance 1, equal in every cache. Requires their blocks.
  void Synthesize(int slot, int64_t positions);

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
  int context() const { return size_.context; }
  int blocks() const { return size_.blocks; }

 private:
  // `buffer` has the size that Bytes returns for `layers` and size.blocks.
  KvCache(kernels::LatentRowFormat format, int layers, const CacheSize& size,
          kernels::AlignedBuffer buffer);

  char* Row(int slot, int layer, int64_t position);

  const kernels::LatentRowFormat format_;
  const CacheSize size_;
  const uint64_t layer_bytes_;  // One layer of a block.
  const uint64_t block_bytes_;  // All layers of a block.
  kernels::AlignedBuffer buffer_;
  std::vector<int> slots_of_;                    // Their number, by block.
  std::vector<char> written_;                    // By block.
  std::vector<std::vector<int>> slots_;          // Blocks, by slot.
  std::vector<std::vector<const char*>> views_;  // Results of Blocks, by slot.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_KV_CACHE_H_
