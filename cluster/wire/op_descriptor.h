// SPDX-License-Identifier: Apache-2.0
// The names of a collective operation: what it does, by which algorithm, in
// which type its values travel. Each has a number in frames, a text on the
// command line and, for the wire's type, a form in protos/types.proto.
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

// kOneShot sends to every other rank directly. kTwoShot sends each share to its
// owner, and the owner sends the sum to all. kRing passes shares to neighbours.
enum class Algorithm : uint8_t { kOneShot = 1, kRing = 2, kTwoShot = 3 };

// The type of elements between ranks. Sums are always made in float32.
enum class Wire : uint8_t { kF32 = 0, kBf16 = 1, kInt8 = 2 };

// How float32 values travel. Int8 has a scale for every 128 elements, counted
// from the start of each row of `row_elements`; 0: all elements are one row.
struct Encoding {
  Wire wire = Wire::kF32;
  size_t row_elements = 0;
};

// The connections between two ranks. Direct exchanges never wait behind the
// megabytes of a ring, nor one direction of a ring behind the other.
enum class Lane : uint8_t { kDirect = 0, kRight = 1, kLeft = 2 };
inline constexpr int kLanes = 3;

// Two ranks are in the same operation when all of this but the lane is equal.
struct OpDescriptor {
  Operation operation = Operation::kBarrier;
  Algorithm algorithm = Algorithm::kOneShot;
  Wire wire = Wire::kF32;
  Lane lane = Lane::kDirect;  // That of the frame.

  bool operator==(const OpDescriptor&) const = default;
};

// Returns one byte each: operation in the lowest, then algorithm, wire, lane.
uint32_t PackDescriptor(const OpDescriptor& descriptor);

// Returns the descriptor of the same operation on another lane.
constexpr uint32_t WithLane(uint32_t op_descriptor, Lane lane) {
  return (op_descriptor & 0xffffffu) | static_cast<uint32_t>(lane) << 24;
}

// Returns "all_reduce (ring, bf16)". Unknown numbers are printed as "?9".
std::string DescriptorName(uint32_t op_descriptor);

// Return "all_reduce", "one_shot", "bf16", ...: the command line's names.
absl::string_view OperationText(Operation operation);
absl::string_view AlgorithmText(Algorithm algorithm);
absl::string_view WireText(Wire wire);

// Errors: INVALID_ARGUMENT lists the known names.
absl::StatusOr<Operation> ParseOperation(absl::string_view text);
absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view text);
absl::StatusOr<Wire> ParseWire(absl::string_view text);

v1::WireDtype WireToProto(Wire wire);

// Errors: INVALID_ARGUMENT for an unspecified or unknown type.
absl::StatusOr<Wire> WireFromProto(v1::WireDtype wire);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_OP_DESCRIPTOR_H_
