// SPDX-License-Identifier: Apache-2.0
// How a vector of float32 lies on the wire, in each of the wire's types.
//
// A tensor [rows, row_elements], float32, row-major, travels in frames. Each
// covers a range of elements, and can be decoded without the others:
//
//   f32, bf16   the elements
//   int8        the codes of all elements, then the float32 scale of each group
//
// all little-endian. A group is 128 elements counted from the start of its row;
// a row's last group may be shorter. What an element decodes to depends on its
// group only, not on how the tensor was cut into frames and segments, because
// these begin and end at borders: between groups, or at multiples of 32
// elements (64 bytes of bf16, a cache line) of the whole tensor.
#ifndef RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_
#define RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_

#include <cstddef>

#include "absl/types/span.h"
#include "cluster/wire/op_descriptor.h"

namespace ringfleet::cluster {

// Immutable, so thread-safe. Nothing allocates. Ranges [begin, end) count
// elements of the tensor; `begin` is a border, `end` a border or the tensor's
// end, and begin <= end.
class WireFormat {
 public:
  // One frame as it was received: contiguous pieces of any size and alignment,
  // in order; an element may straddle two or more of them.
  using Pieces = absl::Span<const absl::Span<const char>>;

  // Only int8 depends on `row_elements`; 0: all elements are one row.
  WireFormat(Wire wire, size_t row_elements);

  Wire wire() const { return wire_; }

  // Whether memory may be sent, and received, as it is.
  bool IdentityBytes() const { return wire_ == Wire::kF32; }

  // Bytes of the range's frame.
  size_t EncodedBytes(size_t begin, size_t end) const;

  // What one element takes at most: of int8 with rows of one, a code and a
  // scale.
  size_t MaxElementBytes() const;

  // The last border at or before `element`.
  size_t FloorToBorder(size_t element) const;

  // Writes EncodedBytes(begin, end) bytes. `values` points at the range's first
  // element, as `out` and `sum` do below. Rounding, infinities and NaNs are
  // those of kernels/reduce.h.
  void Encode(const float* values, size_t begin, size_t end, char* out) const;

  // out[i] = element i of the frame. `pieces` must hold EncodedBytes(begin,
  // end) in all, which the caller has compared with what a peer sent.
  void Decode(Pieces pieces, size_t begin, size_t end, float* out) const;

  // sum[i] = base[i] + element i of the frame, in float32; else as Decode.
  // `base` may be `sum`.
  void Accumulate(Pieces pieces, size_t begin, size_t end, const float* base,
                  float* sum) const;

  // Replaces values by what they would arrive as.
  void Round(size_t begin, size_t end, float* values) const;

 private:
  size_t GroupsBefore(size_t element) const;
  // Calls visit(size) for each group of the range.
  template <typename Visit>
  void ForEachGroup(size_t begin, size_t end, Visit visit) const;
  struct Sink;  // What is done with the elements of a frame.
  void ReadFrame(const Sink& sink, Pieces pieces, size_t begin, size_t end,
                 const float* base, float* target) const;

  const Wire wire_;
  const size_t row_elements_;
  const size_t row_groups_;  // Of int8.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_
