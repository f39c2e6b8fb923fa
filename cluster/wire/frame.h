// SPDX-License-Identifier: Apache-2.0
// One message of a link: ringfleet.v1.Frame, written and read by hand. The
// fixed-size fields come first, in order. The payload comes last, its length
// padded to five bytes. So the header has a constant size, and the payload can
// be a slice of the sender's memory. A written frame is an ordinary protobuf
// message, and the reader understands any encoding of the message.
#ifndef RINGFLEET_CLUSTER_WIRE_FRAME_H_
#define RINGFLEET_CLUSTER_WIRE_FRAME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/wire/op_descriptor.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Largest accepted epoch. Epochs start at the wall clock's microseconds. They
// reach this value after 290 000 years.
inline constexpr uint64_t kMaxEpoch = uint64_t{1} << 63;

// The fields of ringfleet.v1.Frame. protos/collective.proto explains them.
struct FrameHeader {
  uint32_t group = 0;
  uint32_t source = 0;
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  uint32_t op_descriptor = 0;
  uint32_t step = 0;
  uint64_t offset_bytes = 0;
  uint32_t crc32c = 0;
  uint64_t check = 0;
  uint64_t count = 0;

  bool operator==(const FrameHeader&) const = default;
};

// Five fixed32 and five fixed64 fields with one-byte tags, then the tag and
// the padded length of the payload.
inline constexpr size_t kFrameHeaderBytes = 5 * 5 + 5 * 9 + 1 + 5;
// The flow-control window of a stream with a pending read grows by at most this
// much at once. A larger message would stall in the middle.
inline constexpr size_t kMaxPayloadBytes = size_t{1} << 20;

// The operation of warm-up frames, whose sequence is 0. They make the windows
// of a new connection grow, and receivers drop them.
inline constexpr uint32_t kWarmUpDescriptor = 0;

// A received frame, whose payload still lies where the transport received it.
// Bodies come from a pool and go back to it, so that a frame costs no
// allocation once the pool is warm.
class FrameBody {
 public:
  FrameHeader header;
  // Contiguous pieces, in order, of any alignment and size. An element may
  // straddle two pieces.
  std::vector<absl::Span<const char>> payload;
  size_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // Covers the payload alone; set by CheckCrc.
  std::string copy;  // Holds the payload of a message encoded otherwise.

  // Gives up the memory that the pieces point at, and the body itself.
  virtual void Recycle() = 0;

 protected:
  ~FrameBody() = default;
};

struct FrameRecycler {
  void operator()(FrameBody* body) const { body->Recycle(); }
};
// A frame must not outlive its transport.
using ReceivedFrame = std::unique_ptr<FrameBody, FrameRecycler>;

// Keeps bodies of one kind for further frames. A Body is default constructible
// and calls Return from its Recycle. The pool must outlive the frames.
// Thread-safe.
template <typename Body>
class FramePool {
 public:
  Body* Take() {
    MutexLock lock(&mu_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<Body>());
      free_.reserve(all_.size());
      return all_.back().get();
    }
    Body* const body = free_.back();
    free_.pop_back();
    return body;
  }
  void Return(Body* body) {
    MutexLock lock(&mu_);
    free_.push_back(body);
  }

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<Body>> all_ ABSL_GUARDED_BY(mu_);
  std::vector<Body*> free_ ABSL_GUARDED_BY(mu_);
};

// Returns the CRC-32C of the header's fields without crc32c, in order and
// little-endian, followed by a payload of `payload_bytes` whose own checksum is
// `payload_crc`.
uint32_t FrameCrc(const FrameHeader& header, uint32_t payload_crc,
                  size_t payload_bytes);

// Writes kFrameHeaderBytes to `out`. The payload must follow, with
// `payload_bytes`. Requires payload_bytes <= kMaxPayloadBytes.
void EncodeFrameHeader(const FrameHeader& header, size_t payload_bytes,
                       char* out);

// Reads the message in `pieces` into header, payload and payload_bytes of
// `frame`. The payload points into the pieces when EncodeFrameHeader wrote the
// header, else into a copy in the frame. The checksum is not compared.
//
// Errors: DATA_LOSS: the message is no Frame, or its payload exceeds
// kMaxPayloadBytes.
absl::Status ParseFrame(absl::Span<const absl::Span<const char>> pieces,
                        FrameBody* frame);

// Sets payload_crc. Errors: DATA_LOSS: the header's checksum does not match.
// The message names `peer` and both values.
absl::Status CheckCrc(FrameBody* frame, int peer);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_FRAME_H_
