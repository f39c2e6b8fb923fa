// SPDX-License-Identifier: Apache-2.0
// How operations in halves cut rows into frames; the same on all ranks.
#ifndef RINGFLEET_CLUSTER_HALVES_FRAMES_H_
#define RINGFLEET_CLUSTER_HALVES_FRAMES_H_

#include <algorithm>
#include <cstddef>

#include "cluster/chunks.h"
#include "cluster/communicator.h"
#include "cluster/wire_format.h"

namespace ringfleet::cluster {

// Elements of a frame, at most `most`: whole rows, which travel as `row_bytes`
// each, where one fits at all.
inline size_t FrameElements(const HalvesLayout& layout, int ranks,
                            size_t row_bytes, size_t most) {
  const size_t row = layout.row_size;
  if (row == 0 || row > most) return most;
  const size_t segment =
      layout.segment_bytes > 0
          ? layout.segment_bytes
          : DefaultSegmentBytes(layout.rows, ranks, row_bytes);
  return std::clamp<size_t>(segment / row_bytes, 1, most / row) * row;
}

// The same of what is added up.
inline size_t SumFrameElements(const HalvesLayout& layout, int ranks,
                               const WireFormat& format) {
  return std::max(
      kLeastChunkElements,
      FrameElements(layout, ranks, format.EncodedBytes(0, layout.row_size),
                    kChunkElements));
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_HALVES_FRAMES_H_
