// SPDX-License-Identifier: Apache-2.0
// How operations in halves cut rows into frames; the same on all ranks.
#ifndef RINGFLEET_CLUSTER_HALVES_FRAMES_H_
#define RINGFLEET_CLUSTER_HALVES_FRAMES_H_

#include <algorithm>
#include <cstddef>

#include "cluster/chunks.h"
#include "cluster/communicator.h"

namespace ringfleet::cluster {

// Elements of `size` bytes of a frame, at most `most`: whole rows where one
// fits at all.
inline size_t FrameElements(const HalvesLayout& layout, int ranks, size_t size,
                            size_t most) {
  const size_t row = layout.row_size;
  if (row == 0 || row > most) return most;
  const size_t segment =
      layout.segment_bytes > 0
          ? layout.segment_bytes
          : DefaultSegmentBytes(layout.rows, ranks, row * size);
  return std::clamp<size_t>(segment / (row * size), 1, most / row) * row;
}

// The same of sums, whatever they travel as.
inline size_t SumFrameElements(const HalvesLayout& layout, int ranks) {
  return std::max(kLeastChunkElements,
                  FrameElements(layout, ranks, sizeof(float), kChunkElements));
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_HALVES_FRAMES_H_
