// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_STRATEGIES_CACHE_ROWS_H_
#define RINGFLEET_WORKER_STRATEGIES_CACHE_ROWS_H_

#include <cstddef>

#include "kernels/attention/latent_cache.h"
#include "worker/fused/all_gather_matmul.h"
#include "worker/model/batch.h"
#include "worker/model/layer_context.h"

namespace ringfleet::worker {

// Carries rows of one layer's latent cache from the rank that computed them to
// the caches of all ranks. The computing rank has the rows in workspace.kv.
// Rows travel in the format of the cache. Refers to the constructor's
// arguments.
class CacheRows final : public RowAttachment {
 public:
  CacheRows(LayerContext& context, const Batch& batch, int layer)
      : context_(context), batch_(batch), layer_(layer) {}

  // Bytes of one row.
  size_t bytes() const { return context_.cache.format().bytes(); }

  // Writes row `i` of workspace.kv to `bytes`.
  void Store(size_t i, char* bytes) const override {
    kernels::StoreLatentRow(
        context_.cache.format(),
        context_.workspace.kv.data() + i * context_.spec.cache_row(), bytes);
  }
  // Writes `bytes` to the cache, at the position of row `row` of the batch.
  void Load(size_t row, const char* bytes) override {
    ForEachRow(batch_, row, row + 1, [&](size_t, int slot, int64_t position) {
      context_.cache.WriteStored(slot, layer_, position, bytes);
    });
  }

 private:
  LayerContext& context_;
  const Batch& batch_;
  const int layer_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_STRATEGIES_CACHE_ROWS_H_
