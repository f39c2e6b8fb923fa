// SPDX-License-Identifier: Apache-2.0
#include "worker/kv_cache.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/status_macros.h"
#include "kernels/check.h"
#include "kernels/elementwise.h"

namespace ringfleet::worker {
namespace {

using kernels::kCacheBlockPositions;

int BlocksFor(int positions) {
  return static_cast<int>((positions + kCacheBlockPositions - 1) /
                          kCacheBlockPositions);
}

uint64_t LayerBytes(kernels::Dtype dtype, int kv_lora_rank, int rope_dim) {
  return kCacheBlockPositions * static_cast<uint64_t>(kv_lora_rank + rope_dim) *
         kernels::DtypeBytes(dtype);
}

}  // namespace

uint64_t KvCache::Bytes(kernels::Dtype dtype, int layers, int kv_lora_rank,
                        int rope_dim, int slots, int context) {
  return LayerBytes(dtype, kv_lora_rank, rope_dim) * layers * slots *
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
  return KvCache(dtype, layers, kv_lora_rank, rope_dim, slots, context,
                 *std::move(buffer));
}

KvCache::KvCache(kernels::Dtype dtype, int layers, int kv_lora_rank,
                 int rope_dim, int slots, int context,
                 kernels::AlignedBuffer buffer)
    : dtype_(dtype),
      kv_lora_rank_(kv_lora_rank),
      rope_dim_(rope_dim),
      context_(context),
      layer_bytes_(LayerBytes(dtype, kv_lora_rank, rope_dim)),
      block_bytes_(layer_bytes_ * layers),
      buffer_(std::move(buffer)),
      slots_(slots) {
  const int blocks = slots * BlocksFor(context);
  free_.reserve(blocks);
  for (int block = blocks; block-- > 0;) {
    free_.push_back(buffer_.data() + block * block_bytes_);
  }
  for (std::vector<char*>& slot : slots_) slot.reserve(BlocksFor(context));
  view_.reserve(BlocksFor(context));
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

void KvCache::Write(int slot, int layer, int64_t position, const float* row) {
  const size_t numbers = kv_lora_rank_ + rope_dim_;
  char* destination =
      slots_[slot][position / kCacheBlockPositions] + layer * layer_bytes_ +
      (position % kCacheBlockPositions) * numbers * kernels::DtypeBytes(dtype_);
  if (dtype_ == kernels::Dtype::kBf16) {
    kernels::FloatToBf16(row, numbers,
                         reinterpret_cast<uint16_t*>(destination));
  } else {
    std::memcpy(destination, row, numbers * sizeof(float));
  }
}

kernels::LatentCacheView KvCache::View(int slot, int layer) {
  view_.clear();
  for (const char* block : slots_[slot]) {
    view_.push_back(block + layer * layer_bytes_);
  }
  return {.dtype = dtype_,
          .kv_lora_rank = static_cast<size_t>(kv_lora_rank_),
          .rope_dim = static_cast<size_t>(rope_dim_),
          .blocks = view_};
}

}  // namespace ringfleet::worker
