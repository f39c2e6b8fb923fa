// SPDX-License-Identifier: Apache-2.0
// The form of float32 values on the wire, in each of the wire's types.
//
// A tensor [rows, row_elements], float32, row-major, travels in frames. Each
// frame covers a range of elements and can be decoded by itself. All numbers
// are little-endian:
//
//   f32, bf16   the elements
//   int8        the codes of all elements, then the float32 scale of each
//               quantisation group
//
// A quantisation group is 128 elements counted from the start of a row; the
// last group of a row may be shorter. Frames and shares begin and end at
// borders: between groups for int8, else at multiples of 32 elements (64 bytes
// of bf16, a cache line) of the whole tensor. So an element decodes to the same
// bits however the tensor is cut.
#ifndef RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_
#define RINGFLEET_CLUSTER_WIRE_WIRE_FORMAT_H_

#include <cstddef>

#include "absl/types/span.h"
#include "cluster/wire/op_descriptor.h"

namespace ringfleet::cluster {

// Immutable, so thread-safe. Nothing allocates. Ranges [begin, end) count
// elements of the tensor: `begin` is a border, `end` is a border or the
// tensor's end, and begin <= end.
class WireFormat {
 public:
  // A received frame: contiguous pieces of any size and alignment, in order. An
  // element may straddle two pieces or more.
  using Pieces = absl::Span<const absl::Span<const char>>;

  // `row_elements` matters to int8 only; 0: all elements are one row.
  WireFormat(Wire wire, size_t row_elements);

  Wire wire() const { return wire_; }

  // True when memory is sent and received without conversion.
  bool IdentityBytes() const { return wire_ == Wire::kF32; }

  // Returns the bytes of the range's frame.
  size_t EncodedBytes(size_t begin, size_t end) const;

  // Returns the most bytes that one element takes. An int8 row of one element
  // has a code and a scale.
  size_t MaxElementBytes() const;

  // Returns the last border at or before `element`.
  size_t FloorToBorder(size_t element) const;

  // Writes EncodedBytes(begin, end) bytes. `values` points at the range's first
  // element, as `out` and `sum` do below. kernels/reduce.h defines the
  // rounding, infinities and NaNs.
  void Encode(const float* values, size_t begin, size_t end, char* out) const;

  // Computes out[i] = element i of the frame. Requires that `pieces` hold
  // EncodedBytes(begin, end) in all: the caller checks the size of a peer's
  // frame.
  void Decode(Pieces pieces, size_t begin, size_t end, float* out) const;

  // Computes sum[i] = base[i] + element i of the frame, in float32. `base` may
  // be `sum`. Else as Decode.
  void Accumulate(Pieces pieces, size_t begin, size_t end, const float* base,
                  float* sum) const;

  // Replaces values by the values that would arrive.
  void Round(size_t begin, size_t end, float* values) const;

 private:
  size_t GroupsBefore(size_t element) const;
  // Calls visit(size) for each group of the range.
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
