// SPDX-License-Identifier: Apache-2.0
// The parts of an operation's descriptor: operation, algorithm, type on the
// wire and lane. Each value has a number in frames. Operations, algorithms and
// wire types also have a name on the command line and a value in
// protos/types.proto.
#ifndef RINGFLEET_CLUSTER_WIRE_OP_DESCRIPTOR_H_
#define RINGFLEET_CLUSTER_WIRE_OP_DESCRIPTOR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

enum class Operation : uint8_t {
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBarrier = 4,
  kAllToAll = 5,
  kBroadcast = 6,
  kAllGatherMatmul = 7,      // Communicator::StreamingAllGather.
  kMatmulReduceScatter = 8,  // Communicator::StreamingReduceScatter.
};

// The way of data between ranks. kOneShot sends directly to every other rank.
// kTwoShot sends each share to its owner, and the owner sends the sum to all
// ranks. kRing passes shares on to neighbours.
enum class Algorithm : uint8_t { kOneShot = 1, kRing = 2, kTwoShot = 3 };

// The type of elements on the wire. Sums are always computed in float32.
enum class Wire : uint8_t { kF32 = 0, kBf16 = 1, kInt8 = 2 };

// The encoding of float32 values on the wire. kInt8 has one scale for every 128
// elements, counted from the start of each row. A row has `row_elements`
// elements. row_elements 0: all elements are one row.
struct Encoding {
  Wire wire = Wire::kF32;
  size_t row_elements = 0;
};

// Two ranks have a separate connection for each lane. So frames of a direct
// exchange never wait behind megabytes of a ring, and one direction of a ring
// never waits behind the other.
enum class Lane : uint8_t { kDirect = 0, kRight = 1, kLeft = 2 };
inline constexpr int kLanes = 3;

// The descriptor in a frame's header. Frames of one operation have equal
// descriptors but for the lane.
struct OpDescriptor {
  Operation operation = Operation::kBarrier;
  Algorithm algorithm = Algorithm::kOneShot;
  Wire wire = Wire::kF32;
  Lane lane = Lane::kDirect;  // The frame's lane.

  bool operator==(const OpDescriptor&) const = default;
};

// Returns a number with one byte for each field: operation in the lowest byte,
// then algorithm, wire and lane.
uint32_t PackDescriptor(const OpDescriptor& descriptor);

// Returns `op_descriptor` with another lane.
constexpr uint32_t WithLane(uint32_t op_descriptor, Lane lane) {
  return (op_descriptor & 0xffffffu) | static_cast<uint32_t>(lane) << 24;
}

// Returns "all_reduce (ring, bf16)". Unknown numbers are printed as "?9".
std::string DescriptorName(uint32_t op_descriptor);

// Return the names on the command line, such as "all_reduce", "one_shot" and
// "bf16".
absl::string_view OperationText(Operation operation);
absl::string_view AlgorithmText(Algorithm algorithm);
absl::string_view WireText(Wire wire);

// Return the value of a name. INVALID_ARGUMENT: an unknown name; the message
// lists the known names.
absl::StatusOr<Operation> ParseOperation(absl::string_view text);
absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view text);
absl::StatusOr<Wire> ParseWire(absl::string_view text);

v1::WireDtype WireToProto(Wire wire);

// Returns the wire type of a proto. INVALID_ARGUMENT: an unspecified or unknown
// type.
absl::StatusOr<Wire> WireFromProto(v1::WireDtype wire);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_OP_DESCRIPTOR_H_
