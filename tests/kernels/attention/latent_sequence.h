// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_KERNELS_ATTENTION_LATENT_SEQUENCE_H_
#define RINGFLEET_TESTS_KERNELS_ATTENTION_LATENT_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/aligned_buffer.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_decode.h"

namespace ringfleet::kernels {

// A cache of given rows. What lies behind them in the last block is NaN:
// reading it would show.
class LatentSequence {
 public:
  // rows [positions, format.numbers()]
  LatentSequence(const LatentRowFormat& format, const std::vector<float>& rows)
      : rows_(rows.size()) {
    const size_t positions = rows.size() / format.numbers();
    for (size_t t = 0; t < positions; ++t) {
      if (t % kCacheBlockPositions == 0) {
        blocks_.emplace_back(kCacheBlockPositions * format.bytes());
        std::memset(blocks_.back().data(), 0xff, blocks_.back().size());
        pointers_.push_back(blocks_.back().data());
      }
      char* row =
          blocks_.back().data() + t % kCacheBlockPositions * format.bytes();
      StoreLatentRow(format, &rows[t * format.numbers()], row);
      LoadLatentRows(format, row, 1, &rows_[t * format.numbers()],
                     format.numbers());
    }
  }

  MlaSpan Span(int64_t first_position, size_t num_queries,
               size_t first_row) const {
    return {.blocks = pointers_,
            .first_position = first_position,
            .num_queries = num_queries,
            .first_row = first_row};
  }

  // As the cache holds them.
  const std::vector<float>& rows() const { return rows_; }

 private:
  std::vector<float> rows_;
  std::vector<AlignedBuffer> blocks_;
  std::vector<const char*> pointers_;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_TESTS_KERNELS_ATTENTION_LATENT_SEQUENCE_H_
