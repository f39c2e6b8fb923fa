// SPDX-License-Identifier: Apache-2.0
// Encodes and parses ringfleet.v1.Frame, the message of a link, without
// protobuf's generated code. The encoder writes the fixed-size fields first, in
// order. It writes the payload last, with its length padded to five bytes. So
// the header has a constant size, and the payload can be a slice of the
// sender's memory. An encoded frame is a valid protobuf message. The parser
// accepts every valid encoding of Frame.
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

// Largest accepted epoch. An epoch starts from the wall clock's microseconds,
// which reach this value after 290 000 years.
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

// Bytes of an encoded header: five fixed32 and five fixed64 fields with
// one-byte tags, then the tag and the padded length of the payload.
inline constexpr size_t kFrameHeaderBytes = 5 * 5 + 5 * 9 + 1 + 5;
// Largest payload of a frame. The flow-control window of a stream with a
// pending read grows by at most 1 MiB at once, so a larger message would stall
// in the middle.
inline constexpr size_t kMaxPayloadBytes = size_t{1} << 20;

// The op_descriptor of warm-up frames, whose sequence is 0. Warm-up frames make
// the flow-control windows of a new connection grow. Receivers drop warm-up
// frames.
inline constexpr uint32_t kWarmUpDescriptor = 0;

// A received frame. Its payload lies in the transport's memory. Bodies come
// from a pool and go back to the pool, so a frame costs no allocation once the
// pool has enough bodies.
class FrameBody {
 public:
  FrameHeader header;
  // The payload as contiguous pieces, in order, of any alignment and size. An
  // element may lie in two pieces.
  std::vector<absl::Span<const char>> payload;
  size_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // The payload's alone; set by CheckCrc.
  std::string copy;  // The payload, if another encoder wrote the message.

  // Releases the memory of the pieces and gives the body back to its pool.
  virtual void Recycle() = 0;

 protected:
  ~FrameBody() = default;
};

struct FrameRecycler {
  void operator()(FrameBody* body) const { body->Recycle(); }
};
// Owns a received frame. The frame must not outlive its transport.
using ReceivedFrame = std::unique_ptr<FrameBody, FrameRecycler>;

// Keeps bodies of one kind for reuse. A Body must be default constructible and
// call Return from Recycle. The pool must outlive the frames. Thread-safe.
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

// Returns the CRC-32C of a frame: all fields of `header` but crc32c, in order
// and little-endian, followed by the payload. The payload has `payload_bytes`
// bytes and the checksum `payload_crc`.
uint32_t FrameCrc(const FrameHeader& header, uint32_t payload_crc,
                  size_t payload_bytes);

// Writes kFrameHeaderBytes bytes to `out`. The caller must send `payload_bytes`
// bytes of payload behind them. Requires payload_bytes <= kMaxPayloadBytes.
void EncodeFrameHeader(const FrameHeader& header, size_t payload_bytes,
                       char* out);

// Parses the message in `pieces`. Sets header, payload and payload_bytes of
// `frame`. The payload points into `pieces` if EncodeFrameHeader wrote the
// header, and else into frame->copy. Does not verify the checksum.
//
// Errors: DATA_LOSS: the message is no Frame, or its payload exceeds
// kMaxPayloadBytes.
absl::Status ParseFrame(absl::Span<const absl::Span<const char>> pieces,
                        FrameBody* frame);

// Computes frame->payload_crc and verifies the header's crc32c. DATA_LOSS: the
// checksums differ. The message names `peer` and both checksums.
absl::Status CheckCrc(FrameBody* frame, int peer);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_FRAME_H_
