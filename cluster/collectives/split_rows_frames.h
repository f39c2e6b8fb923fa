// SPDX-License-Identifier: Apache-2.0
// The size of frames in StreamingAllGather and StreamingReduceScatter. Equal on
// all ranks.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_FRAMES_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_FRAMES_H_

#include <algorithm>
#include <cstddef>

#include "cluster/collectives/communicator.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Returns the number of elements of a frame, at most `most`. A frame has whole
// rows, unless a row has more than `most` elements. A row has `row_bytes` bytes
// on the wire.
inline size_t FrameElements(const SplitRowsLayout& layout, size_t row_bytes,
                            size_t most, size_t default_segment_bytes) {
  const size_t row = layout.row_size;
  if (row == 0 || row > most) return most;
  const size_t frame_bytes =
      layout.segment_bytes > 0 ? layout.segment_bytes : default_segment_bytes;
  return std::clamp<size_t>(frame_bytes / row_bytes, 1, most / row) * row;
}

// Returns the bytes of a frame of gathered rows.
inline size_t RowFrameBytes(const SplitRowsLayout& layout, int ranks) {
  return FrameElements(
      layout, layout.row_size, kMaxPayloadBytes,
      DefaultRowSegmentBytes(layout.rows, ranks, layout.row_size));
}

// Returns the number of elements of a frame of sums.
inline size_t SumFrameElements(const SplitRowsLayout& layout, int ranks,
                               const WireFormat& format) {
  const size_t row_bytes = format.EncodedBytes(0, layout.row_size);
  return std::max(
      kMinFrameElements,
      FrameElements(layout, row_bytes, kMaxFrameElements,
                    DefaultSumSegmentBytes(layout.rows, ranks, row_bytes)));
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_SPLIT_ROWS_FRAMES_H_
