// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/fused_product.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/products/matmul.h"

namespace ringfleet::worker {
namespace {

// Used where the system does not tell. Zen 4 and Sapphire Rapids have as much.
constexpr double kUsualLevel2Bytes = 1 << 20;

double HalfLevel2Bytes() {
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return (bytes > 0 ? static_cast<double>(bytes) : kUsualLevel2Bytes) / 2;
}

}  // namespace

FusedTiles FusedTiles::Default(kernels::WeightForm form, size_t depth) {
  constexpr uint64_t kDepth = 4096;  // Any: scales of rows count little.
  const double element_bytes =
      static_cast<double>(
          kernels::WeightMatrix::Bytes(form, kernels::kPanelRows, kDepth)) /
      static_cast<double>(kernels::kPanelRows * kDepth);
  FusedTiles tiles;
  const double panel = static_cast<double>(kernels::kPanelRows) *
                       static_cast<double>(std::max<size_t>(depth, 1)) *
                       element_bytes;
  const double panels =
      std::clamp(HalfLevel2Bytes() / panel, 1.0, 64.0);  // 4096 outputs.
  tiles.tile_columns = static_cast<size_t>(panels) * kernels::kPanelRows;
  tiles.piece_rows =
      kernels::BestProductRows(kernels::ActivationFormFor(form)).enough;
  return tiles;
}

void FusedTiles::Take(const cluster::TileTable::Cut& cut) {
  if (cut.tile_columns > 0) tile_columns = cut.tile_columns;
  if (cut.segment_bytes > 0) segment_bytes = cut.segment_bytes;
  if (cut.piece_rows > 0) piece_rows = cut.piece_rows;
}

void PartProgress::Reset(int ranks) {
  MutexLock lock(&mu_);
  failed_ = false;
  sum_ = 0;
  rows_.assign(static_cast<size_t>(ranks) * 2, 0);
}

void PartProgress::Add(cluster::ShardPart part, size_t rows) {
  MutexLock lock(&mu_);
  rows_[Index(part)] += rows;
  sum_ += rows;
  changed_.NotifyAll();
}

size_t PartProgress::Of(cluster::ShardPart part) {
  MutexLock lock(&mu_);
  return rows_[Index(part)];
}

void PartProgress::Fail() {
  MutexLock lock(&mu_);
  failed_ = true;
  changed_.NotifyAll();
}

bool PartProgress::failed() {
  MutexLock lock(&mu_);
  return failed_;
}

bool PartProgress::Await(size_t least) {
  MutexLock lock(&mu_);
  while (sum_ < least) {
    if (failed_) return false;
    changed_.Wait(&mu_);
  }
  return true;
}

size_t PartProgress::Get(absl::Span<size_t> rows) {
  MutexLock lock(&mu_);
  std::copy_n(rows_.begin(), rows.size(), rows.begin());
  return sum_;
}

}  // namespace ringfleet::worker
