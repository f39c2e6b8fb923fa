// SPDX-License-Identifier: Apache-2.0
// The bidirectional ring. Every share is cut into two parts. The right part
// travels from rank r to rank r + 1, the left part from rank r to rank r - 1,
// each on its own lane. Parts are cut into frames. A rank passes a frame on as
// soon as the frame has arrived (cut-through), so a hop costs the time of a
// frame, not of a share. Only neighbours exchange frames.
//
//   reduce phase, steps 0 .. size - 2: the right part of share s starts at
//   rank s + 1 and travels to s + 2, ..., s. The left part starts at rank s - 1
//   and travels to s - 2, ..., s. Every rank adds its own values. Partial sums
//   travel in float32, because rounding errors of all hops would add up.
//   gather phase, the next size - 1 steps: rank s, the owner of share s, rounds
//   the sum to the format once. The share then goes around the ring unchanged.
//
// One rank computes each element's sum, and the others copy it. So all ranks
// end with equal bits. The order of a sum depends on the share.
//
// Long shares are cut into slices. The number of slices is equal for all
// shares. A rank begins slice i when it has passed on the last part of slice
// i - 1. A reduce or a gather between two ranks passes nothing on. It begins
// slice i when slice i - 2 has arrived. So links do not wait, and the bytes in
// the buffers of sockets and readers stay in the caches. Between two ranks over
// loopback, 134 MB took 44 to 53 ms in one slice and 32 to 39 ms in slices of 1
// MiB. Two ranks at 10 Gbit/s fill their link (perf/results/links.md). Between
// two ranks about two slices are under way. Between more ranks, one or two of a
// rank's parts are under way. Links with a larger product of rate and delay
// need larger slices.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RING_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Computes the sum over ranks. `input` and `output` may be the same memory. No
// frame points at either on return. `offsets` must be borders of the format.
// Every share has (mean bytes of a share in memory) / slice_bytes slices,
// rounded down, but at least one. `slice_bytes` 0 means one slice.
absl::Status RingAllReduce(Exchange& exchange, const WireFormat& format,
                           absl::Span<const float> input,
                           absl::Span<float> output,
                           absl::Span<const uint64_t> offsets,
                           uint64_t slice_bytes);

// Computes this rank's share of the sum. Overwrites `input` with partial sums.
// `share` may lie at its position in `input`.
absl::Status RingReduceScatter(Exchange& exchange, const WireFormat& format,
                               absl::Span<float> input, absl::Span<float> share,
                               absl::Span<const uint64_t> offsets,
                               uint64_t slice_bytes);

// Gathers the shares of all ranks into `output`. `share` may lie at its
// position in `output`. Format is ByteFormat with Value char, or WireFormat
// with Value float.
template <typename Format, typename Value>
absl::Status RingAllGather(Exchange& exchange, const Format& format,
                           absl::Span<const Value> share,
                           absl::Span<Value> output,
                           absl::Span<const uint64_t> offsets,
                           uint64_t slice_bytes);

// Passes the values of `root` along the ring. The first half travels to the
// right, the second half to the left.
absl::Status RingBroadcast(Exchange& exchange, const WireFormat& format,
                           int root, absl::Span<float> values);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_RING_H_
