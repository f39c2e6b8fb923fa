// SPDX-License-Identifier: Apache-2.0
// The bidirectional ring. Every share is cut in two parts: one travels to
// the right, from each rank to the next, the other to the left, on lanes of
// their own. Parts are cut into frames, and a frame is passed on as soon as it
// has arrived (cut-through), so that a hop costs the time of a frame and not
// of a share, and only neighbours talk to each other.
//
//   reduce phase, steps 0 .. size-2: the right part of share s starts at
//   rank s + 1 and walks s + 2, ..., s; every rank adds its own values. The
//   left part walks s - 1, s - 2, ..., s. Partial sums are float32: rounding
//   at every hop would add up.
//   gather phase, the next size-1 steps: from rank s on around the ring,
//   rounded to the format once, by its owner, and forwarded untouched.
//
// Every element is reduced in one place and copied from there, so all ranks
// end with the same bits; the order of the sum depends on the share.
//
// Long shares go round in slices, cut equally often. A slice is begun when
// this rank has passed on the last part of the slice before. Where nothing is
// passed on, it is begun when the slice before the previous one has come. So
// links do not wait, and the bytes in the buffers of sockets and readers stay
// in the caches: between two ranks over loopback 134 MB took 44 to 53 ms at
// once and 32 to 39 ms in slices of a mebibyte, and two ranks at 10 Gbit/s fill
// their link (perf/results/links.md). About two slices are under way between
// two ranks, and one or two of a rank's parts between more ranks. Links whose
// rate times delay is larger want larger slices.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Computes the sum, in place or not. Nothing is read any more on return.
// `offsets` must lie on the format's borders. The number of slices of every
// share is the mean share's size in memory over `slice_bytes`, and at least
// one. `slice_bytes` 0: one slice.
absl::Status RingAllReduce(Exchange& exchange, const WireFormat& format,
                           absl::Span<const float> input,
                           absl::Span<float> output,
                           absl::Span<const uint64_t> offsets,
                           uint64_t slice_bytes);

// `share` may lie at its position in `input`, whose memory takes partial sums.
absl::Status RingReduceScatter(Exchange& exchange, const WireFormat& format,
                               absl::Span<float> input, absl::Span<float> share,
                               absl::Span<const uint64_t> offsets,
                               uint64_t slice_bytes);

// `share` may lie at its position in `output`. Format is ByteFormat with Value
// char, or WireFormat with Value float.
template <typename Format, typename Value>
absl::Status RingAllGather(Exchange& exchange, const Format& format,
                           absl::Span<const Value> share,
                           absl::Span<Value> output,
                           absl::Span<const uint64_t> offsets,
                           uint64_t slice_bytes);

// Passes the values of `root` along the ring both ways, one part each.
absl::Status RingBroadcast(Exchange& exchange, const WireFormat& format,
                           int root, absl::Span<float> values);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_RING_H_
