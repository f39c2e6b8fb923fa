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

int BlocksFor(int positions) {
  return static_cast<int>((positions + kCacheBlockPositions - 1) /
                          kCacheBlockPositions);
}

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
                        int rope_dim, int slots, int context) {
  return LayerBytes(Format(dtype, kv_lora_rank, rope_dim)) * layers * slots *
         BlocksFor(context);
}

absl::StatusOr<KvCache> KvCache::Create(kernels::Dtype dtype, int layers,
                                        int kv_lora_rank, int rope_dim,
                                        int slots, int context) {
  absl::StatusOr<kernels::AlignedBuffer> buffer =
      kernels::AlignedBuffer::Allocate(
          Bytes(dtype, layers, kv_lora_rank, rope_dim, slots, context));
  if (!buffer.ok()) {
    return Annotate(buffer.status(), absl::StrCat("cache of ", slots, " x ",
                                                  context, " positions"));
  }
  return KvCache(Format(dtype, kv_lora_rank, rope_dim), layers, slots, context,
                 *std::move(buffer));
}

KvCache::KvCache(kernels::LatentRowFormat format, int layers, int slots,
                 int context, kernels::AlignedBuffer buffer)
    : format_(format),
      context_(context),
      layer_bytes_(LayerBytes(format)),
      block_bytes_(layer_bytes_ * layers),
      buffer_(std::move(buffer)),
      slots_(slots),
      views_(slots) {
  const int blocks = slots * BlocksFor(context);
  free_.reserve(blocks);
  for (int block = blocks; block-- > 0;) {
    free_.push_back(buffer_.data() + block * block_bytes_);
  }
  for (int slot = 0; slot < slots; ++slot) {
    slots_[slot].reserve(BlocksFor(context));
    views_[slot].reserve(BlocksFor(context));
  }
}

void KvCache::Extend(int slot, int positions) {
  RF_CHECK(positions <= context_);
  std::vector<char*>& blocks = slots_[slot];
  while (static_cast<int>(blocks.size()) < BlocksFor(positions)) {
    RF_CHECK(!free_.empty());  // The pool holds `context` for every slot.
    blocks.push_back(free_.back());
    free_.pop_back();
  }
}

void KvCache::Release(int slot) {
  std::vector<char*>& blocks = slots_[slot];
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
  blocks.clear();
}

void KvCache::Clear(int slot) {
  for (char* block : slots_[slot]) std::memset(block, 0, block_bytes_);
}

void KvCache::Write(int slot, int layer, int64_t position, const float* row) {
  kernels::StoreLatentRow(format_, row, Row(slot, layer, position));
}

void KvCache::WriteStored(int slot, int layer, int64_t position,
                          const char* row) {
  std::memcpy(Row(slot, layer, position), row, format_.bytes());
}

char* KvCache::Row(int slot, int layer, int64_t position) {
  return slots_[slot][position / kCacheBlockPositions] + layer * layer_bytes_ +
         (position % kCacheBlockPositions) * format_.bytes();
}

absl::Span<const char* const> KvCache::Blocks(int slot, int layer) {
  std::vector<const char*>& view = views_[slot];
  view.clear();
  for (const char* block : slots_[slot]) {
    view.push_back(block + layer * layer_bytes_);
  }
  return view;
}

}  // namespace ringfleet::worker
