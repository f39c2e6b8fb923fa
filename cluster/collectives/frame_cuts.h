// SPDX-License-Identifier: Apache-2.0
// The cut of a vector into frames. Sender and receiver make equal cuts, so a
// frame's header gives only the frame's offset.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_FRAME_CUTS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_FRAME_CUTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "cluster/wire/frame.h"
#include "cluster/wire/wire_format.h"

namespace ringfleet::cluster {

// Largest number of elements in a frame. As float32, they take
// kMaxPayloadBytes. Long frames are faster: a stream has one write under way,
// and each frame waits until flow control has let the previous frame pass.
// Between two ranks over loopback, 1.8 MB take 0.68 ms in frames of 1 MiB, and
// 0.88 to 1.0 ms in frames of 64 to 256 KiB (perf/results/collectives.md).
inline constexpr size_t kMaxFrameElements = size_t{1} << 18;
inline constexpr size_t kMaxFrameBytes = kMaxFrameElements * sizeof(float);

// Elements [begin, end) of a tensor.
struct ElementRange {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
};

// The format of bytes, with the interface of WireFormat. An element is a byte
// and travels unchanged.
class ByteFormat {
 public:
  static constexpr size_t kMaxElements = kMaxFrameBytes;

  bool IdentityBytes() const { return true; }
  size_t EncodedBytes(size_t begin, size_t end) const { return end - begin; }
  size_t FloorToBorder(size_t element) const { return element; }
  void Encode(const char* values, size_t begin, size_t end, char* out) const {
    std::memcpy(out, values, end - begin);
  }
  void Decode(absl::Span<const absl::Span<const char>> pieces, size_t begin,
              size_t end, char* out) const {
    for (const auto piece : pieces) {
      std::memcpy(out, piece.data(), piece.size());
      out += piece.size();
    }
  }
};

// Largest distance in elements between two neighbouring borders of a format. A
// frame may start only at a border.
inline constexpr size_t kMinFrameElements = 256;

// Walks the frames of a range in order. An empty range has one empty frame. A
// frame has at most `max_elements` elements. `max_elements` must be
// kMinFrameElements or more, unless every element of the format is a border.
template <typename Format>
class FrameCursor {
 public:
  FrameCursor(const Format& format, ElementRange range,
              size_t max_elements = ~size_t{0})
      : format_(format), range_(range), max_elements_(max_elements) {
    FindEnd();
  }

  // Returns the elements of the frame.
  ElementRange elements() const { return {begin_, end_}; }
  // Returns the number of elements of the range before the frame.
  size_t consumed() const { return begin_ - range_.begin; }
  // Returns the offset of the frame's first byte in the encoded range.
  uint64_t offset() const { return offset_; }
  size_t bytes() const { return format_.EncodedBytes(begin_, end_); }

  // Goes to the next frame and returns true. Returns false if there is no next
  // frame.
  bool Next() {
    if (end_ == range_.end) return false;
    offset_ += bytes();
    begin_ = end_;
    FindEnd();
    return true;
  }

 private:
  // Returns the largest number of elements that fit in a frame.
  size_t MaxElements() const {
    if constexpr (requires { Format::kMaxElements; }) {
      return std::min(max_elements_, Format::kMaxElements);
    } else {
      return std::min({max_elements_, kMaxFrameElements,
                       kMaxPayloadBytes / format_.MaxElementBytes()});
    }
  }

  void FindEnd() {
    end_ = range_.end;
    if (range_.end - begin_ > MaxElements()) {
      end_ = format_.FloorToBorder(begin_ + MaxElements());
    }
  }

  const Format& format_;
  const ElementRange range_;
  const size_t max_elements_;
  size_t begin_ = range_.begin;
  size_t end_ = range_.begin;
  uint64_t offset_ = 0;
};

template <typename T>
absl::Span<const char> BytesOf(const T* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_FRAME_CUTS_H_
