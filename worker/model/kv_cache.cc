// SPDX-License-Identifier: Apache-2.0
#include "worker/model/kv_cache.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::worker {
namespace {

using kernels::kCacheBlockPositions;

kernels::LatentRowFormat Format(kernels::Dtype dtype, int kv_lora_rank,
                                int rope_dim) {
  return {.dtype = dtype,
          .kv_lora_rank = static_cast<size_t>(kv_lora_rank),
          .rope_dim = static_cast<size_t>(rope_dim)};
}

// Returns the bytes of one layer of a block.
uint64_t LayerBytes(const kernels::LatentRowFormat& format) {
  return kCacheBlockPositions * uint64_t{format.bytes()};
}

}  // namespace

uint64_t KvCache::Bytes(kernels::Dtype dtype, int layers, int kv_lora_rank,
                        int rope_dim, int64_t blocks) {
  return LayerBytes(Format(dtype, kv_lora_rank, rope_dim)) * layers * blocks;
}

absl::StatusOr<KvCache> KvCache::Create(kernels::Dtype dtype, int layers,
                                        int kv_lora_rank, int rope_dim,
                                        const CacheSize& size) {
  absl::StatusOr<kernels::AlignedBuffer> buffer =
      kernels::AlignedBuffer::Allocate(
          Bytes(dtype, layers, kv_lora_rank, rope_dim, size.blocks));
  if (!buffer.ok()) {
    return Annotate(buffer.status(),
                    absl::StrCat("cache of ", size.blocks, " blocks of ",
                                 kCacheBlockPositions, " positions"));
  }
  return KvCache(Format(dtype, kv_lora_rank, rope_dim), layers, size,
                 *std::move(buffer));
}

KvCache::KvCache(kernels::LatentRowFormat format, int layers,
                 const CacheSize& size, kernels::AlignedBuffer buffer)
    : format_(format),
      size_(size),
      layer_bytes_(LayerBytes(format)),
      block_bytes_(layer_bytes_ * layers),
      buffer_(std::move(buffer)),
      slots_of_(size.blocks, 0),
      written_(size.blocks, 0),
      slots_(size.slots),
      views_(size.slots) {
  for (int slot = 0; slot < size.slots; ++slot) {
    slots_[slot].reserve(kernels::CacheBlocks(size.context));
    views_[slot].reserve(kernels::CacheBlocks(size.context));
  }
}

void KvCache::Grant(int slot, int block) {
  RF_CHECK(block >= 0 && block < size_.blocks && !taken(block));
  slots_of_[block] = 1;
  written_[block] = 1;
  slots_[slot].push_back(block);
  std::memset(buffer_.data() + block * block_bytes_, 0, block_bytes_);
}

void KvCache::Share(int slot, int block) {
  RF_CHECK(block >= 0 && block < size_.blocks && written(block));
  ++slots_of_[block];
  slots_[slot].push_back(block);
}

void KvCache::Copy(int from, int positions, int slot) {
  RF_CHECK(from >= 0 && from < size_.blocks && written(from) &&
           positions <= static_cast<int>(kCacheBlockPositions));
  const uint64_t bytes = positions * uint64_t{format_.bytes()};
  const char* source = buffer_.data() + from * block_bytes_;
  char* target = buffer_.data() + slots_[slot].back() * block_bytes_;
  for (uint64_t layer = 0; layer < block_bytes_; layer += layer_bytes_) {
    std::memcpy(target + layer, source + layer, bytes);
  }
}

void KvCache::Release(int slot) {
  for (const int block : slots_[slot]) --slots_of_[block];
  slots_[slot].clear();
}

void KvCache::Synthesize(int slot, int64_t positions) {
  constexpr float kWidth = 3.4641016F;  // Uniform numbers of variance 1.
  std::vector<float> row(format_.kv_lora_rank + format_.rope_dim);
  uint64_t state = 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(slot) + 1);
  const auto layers = static_cast<int>(block_bytes_ / layer_bytes_);
  for (int layer = 0; layer < layers; ++layer) {
    for (int64_t position = 0; position < positions; ++position) {
      for (float& value : row) {
        // Marsaglia's xorshift64 (Journal of Statistical Software 8(14), 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        value = (static_cast<float>(state >> 40) * 0x1p-24F - 0.5F) * kWidth;
      }
      Write(slot, layer, position, row.data());
    }
  }
}

void KvCache::Write(int slot, int layer, int64_t position, const float* row) {
  kernels::StoreLatentRow(format_, row, Row(slot, layer, position));
}

void KvCache::WriteStored(int slot, int layer, int64_t position,
                          const char* row) {
  std::memcpy(Row(slot, layer, position), row, format_.bytes());
}

char* KvCache::Row(int slot, int layer, int64_t position) {
  return buffer_.data() +
         slots_[slot][position / kCacheBlockPositions] * block_bytes_ +
         layer * layer_bytes_ +
         (position % kCacheBlockPositions) * format_.bytes();
}

absl::Span<const char* const> KvCache::Blocks(int slot, int layer) {
  std::vector<const char*>& view = views_[slot];
  view.clear();
  for (const int block : slots_[slot]) {
    view.push_back(buffer_.data() + block * block_bytes_ +
                   layer * layer_bytes_);
  }
  return view;
}

}  // namespace ringfleet::worker
