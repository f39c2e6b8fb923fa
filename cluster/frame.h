// SPDX-License-Identifier: Apache-2.0
// One message of a link: ringfleet.v1.Frame, written and read by hand. The
// fixed-size fields come in order and the payload last, its length padded to
// five bytes, so that the header has a constant size and the payload can be a
// slice of the sender's memory. What is written is an ordinary protobuf
// message, and any other encoding of the message is understood.
#ifndef RINGFLEET_CLUSTER_FRAME_H_
#define RINGFLEET_CLUSTER_FRAME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/communicator.h"

namespace ringfleet::cluster {

// The fields of ringfleet.v1.Frame, which explains them.
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
// gRPC's flow-control window of a stream with a pending read grows by at most
// this much at once; a larger message would stall in the middle.
inline constexpr size_t kMaxPayloadBytes = size_t{1} << 20;

enum class Operation : uint8_t {
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBarrier = 4,
};
enum class Algorithm : uint8_t { kOneShot = 1, kRing = 2 };
enum class Direction : uint8_t { kNone = 0, kRight = 1, kLeft = 2 };

// What two ranks must agree in to be in the same operation.
struct OpDescriptor {
  Operation operation = Operation::kBarrier;
  Algorithm algorithm = Algorithm::kOneShot;
  Wire wire = Wire::kF32;
  Direction direction = Direction::kNone;

  bool operator==(const OpDescriptor&) const = default;
};

// One byte each: operation in the lowest, then algorithm, wire, direction.
uint32_t PackDescriptor(const OpDescriptor& descriptor);
// "all_reduce (ring, bf16)"; unknown numbers are printed as numbers.
std::string DescriptorName(uint32_t op_descriptor);

// A frame whose payload still lies where the transport received it.
struct ReceivedFrame {
  FrameHeader header;
  // Contiguous pieces, in order, of any alignment and size: an element may
  // straddle two of them.
  std::vector<absl::Span<const char>> payload;
  size_t payload_bytes = 0;
  // Keeps what `payload` points at alive.
  std::shared_ptr<const void> owner;
};

// CRC-32C of the header's fields but crc32c, in order and little-endian, then
// of the payload.
uint32_t FrameCrc(const FrameHeader& header,
                  absl::Span<const absl::Span<const char>> payload);
uint32_t FrameCrc(const FrameHeader& header, absl::Span<const char> payload);

// Writes kFrameHeaderBytes to `out`; `payload_bytes` of payload must follow.
// Requires payload_bytes <= kMaxPayloadBytes.
void EncodeFrameHeader(const FrameHeader& header, size_t payload_bytes,
                       char* out);

// Reads a message that arrived as `pieces`, which `owner` keeps alive. The
// frame's payload points into the pieces when the header is encoded as above,
// else into a copy that the frame owns. The checksum is not compared.
//
// Errors: DATA_LOSS: not a Frame, or a payload above kMaxPayloadBytes.
absl::StatusOr<ReceivedFrame> ParseFrame(
    absl::Span<const absl::Span<const char>> pieces,
    std::shared_ptr<const void> owner);

// DATA_LOSS when the checksum does not match, naming `peer` and both values.
absl::Status CheckCrc(const ReceivedFrame& frame, int peer);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_FRAME_H_
