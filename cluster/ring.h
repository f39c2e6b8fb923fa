// SPDX-License-Identifier: Apache-2.0
// The bidirectional ring. Every segment is cut in two parts: one travels to
// the right, from each rank to the next, the other to the left, on lanes of
// their own. Parts are cut into chunks, and a chunk is passed on as soon as it
// has arrived (cut-through), so that a hop costs the time of a chunk and not
// of a segment, and only neighbours talk to each other.
//
//   reduce phase, steps 0 .. size-2: the right part of segment s starts at
//   rank s + 1 and walks s + 2, ..., s; every rank adds its own values. The
//   left part walks s - 1, s - 2, ..., s. Partial sums are float32: rounding
//   at every hop would add up.
//   gather phase, the next size-1 steps: from rank s on around the ring,
//   rounded to the format once, by its owner, and forwarded untouched.
//
// Every element is reduced in one place and copied from there, so all ranks
// end with the same bits; the order of the sum depends on the segment.
//
// A long segment goes round in slices, each of which begins when the one before
// has nothing more to pass on: what is under way, and lies in the buffers of
// sockets and readers, stays in the caches. Between two ranks over loopback
// 128 MB took 53 ms without and 32 with (perf/README.md). A link of 10 Gbit/s
// would have to hold more from 1 ms each way on.
#ifndef RINGFLEET_CLUSTER_RING_H_
#define RINGFLEET_CLUSTER_RING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/chunks.h"
#include "cluster/exchange.h"
#include "cluster/wire_format.h"

namespace ringfleet::cluster {

// Segments of twice as many bytes, as they lie in memory, and more go in slices
// of at least as many: 2^18 elements of float32.
inline constexpr size_t kRingSliceBytes = size_t{1} << 20;

// In place or not. Nothing is read any more on return. `offsets` must lie on
// the format's borders.
absl::Status RingAllReduce(Exchange& exchange, const WireFormat& format,
                           absl::Span<const float> input,
                           absl::Span<float> output,
                           absl::Span<const uint64_t> offsets);

// `segment` may lie at its place in `input`, which is used for partial sums.
absl::Status RingReduceScatter(Exchange& exchange, const WireFormat& format,
                               absl::Span<float> input,
                               absl::Span<float> segment,
                               absl::Span<const uint64_t> offsets);

// `segment` may lie at its place in `output`. Format: ByteFormat with Value
// char, or WireFormat with Value float.
template <typename Format, typename Value>
absl::Status RingAllGather(Exchange& exchange, const Format& format,
                           absl::Span<const Value> segment,
                           absl::Span<Value> output,
                           absl::Span<const uint64_t> offsets);

// The values of `root` walk along the ring both ways, one part each.
absl::Status RingBroadcast(Exchange& exchange, const WireFormat& format,
                           int root, absl::Span<float> values);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RING_H_
