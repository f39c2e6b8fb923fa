// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_BATCH_H_
#define RINGFLEET_WORKER_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringfleet::worker {

// Consecutive positions of one sequence: a prefill span, or one decoded token.
struct BatchSegment {
  int slot = 0;
  size_t first_row = 0;
  size_t rows = 0;
  int64_t first_position = 0;
};

// The tokens that one step evaluates, sequence by sequence.
struct Batch {
  std::vector<uint32_t> ids;  // [rows]
  std::vector<BatchSegment> segments;

  size_t rows() const { return ids.size(); }
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_BATCH_H_
