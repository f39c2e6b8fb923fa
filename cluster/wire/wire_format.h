// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes float32 values on the wire, for each wire type.
//
// A float32 tensor [rows, row_elements], row-major, travels in frames. Each
// frame has a range of elements and can be decoded by itself. A frame's
// payload, little-endian:
//
//   f32, bf16   the elements
//   int8        the codes of all elements, then the float32 scale of each
//               quantisation group
//
// A quantisation group has 128 elements, counted from the start of a row. The
// last group of a row may be shorter. Frames and shares begin and end at
// borders. For int8 a border is the start of a group. For f32 and bf16 a border
// is a multiple of 32 elements of the whole tensor (64 bytes of bf16, a cache
// line). So an element decodes to the same bits however the tensor is cut into
// frames.
#ifndef RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_
#define RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_

#include <cstddef>

#include "absl/types/span.h"
#include "cluster/wire/op_descriptor.h"

namespace ringfleet::cluster {

// Immutable and thread-safe. No function allocates. A range [begin, end) counts
// elements of the tensor, with begin <= end. `begin` must be a border, and
// `end` a border or the tensor's end.
class WireFormat {
 public:
  // A received frame's payload: contiguous pieces of any size and alignment, in
  // order. An element may lie in two pieces or more.
  using Pieces = absl::Span<const absl::Span<const char>>;

  // Encoding explains `row_elements`. Only kInt8 uses it.
  WireFormat(Wire wire, size_t row_elements);

  Wire wire() const { return wire_; }

  // Returns true if memory is sent and received without conversion.
  bool IdentityBytes() const { return wire_ == Wire::kF32; }

  // Returns the payload bytes of a frame with the range.
  size_t EncodedBytes(size_t begin, size_t end) const;

  // Returns the largest number of bytes of one element. In an int8 row of one
  // element, the element takes a code and a scale.
  size_t MaxElementBytes() const;

  // Returns the last border at or before `element`.
  size_t FloorToBorder(size_t element) const;

  // Encodes a range into EncodedBytes(begin, end) bytes at `out`. values[0] is
  // element `begin`. kernels/reduce.h defines the rounding of numbers,
  // infinities and NaNs.
  void Encode(const float* values, size_t begin, size_t end, char* out) const;

  // Decodes a frame with the range. out[0] gets element `begin`. `pieces` must
  // have EncodedBytes(begin, end) bytes in total; the caller checks the size of
  // a peer's frame.
  void Decode(Pieces pieces, size_t begin, size_t end, float* out) const;

  // Decodes a frame as Decode does, and computes sum[i] = base[i] + the element
  // `begin` + i, in float32. `base` may be `sum`.
  void Accumulate(Pieces pieces, size_t begin, size_t end, const float* base,
                  float* sum) const;

  // Replaces values by the values that a receiver would decode. values[0] is
  // element `begin`.
  void Round(size_t begin, size_t end, float* values) const;

 private:
  size_t GroupsBefore(size_t element) const;
  // Calls visit(size) for each quantisation group of the range.
  template <typename Visit>
  void ForEachGroup(size_t begin, size_t end, Visit visit) const;
  struct Sink;  // Takes the elements of a frame.
  void ReadFrame(const Sink& sink, Pieces pieces, size_t begin, size_t end,
                 const float* base, float* target) const;

  const Wire wire_;
  const size_t row_elements_;
  const size_t row_groups_;  // For int8.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_
