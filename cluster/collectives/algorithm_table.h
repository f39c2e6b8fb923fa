// SPDX-License-Identifier: Apache-2.0
// Which algorithm carries an operation. The choice depends on the operation,
// its bytes and the number of ranks only, never on time: the order of a sum,
// and so its last bits, must not change from run to run. The table is part of
// what all ranks of an epoch agree in.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_ALGORITHM_TABLE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_ALGORITHM_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

inline constexpr int kMaxGroupSize = 16;

// What a ring sends of a share at a time (see ring.h); 0: all of it.
inline constexpr uint64_t kDefaultRingSliceBytes = uint64_t{1} << 20;
// Less would be a flood of frames.
inline constexpr uint64_t kMinRingSliceBytes = uint64_t{1} << 16;

// Whether there is such an implementation: two_shot of all_reduce, ring of
// everything but all_to_all and barrier, one_shot of everything but
// all_gather_matmul.
bool Supports(Operation operation, Algorithm algorithm);

// Whether a product belongs to it.
constexpr bool IsFused(Operation operation) {
  return operation == Operation::kAllGatherMatmul ||
         operation == Operation::kMatmulReduceScatter;
}

class AlgorithmTable {
 public:
  // One operation between `size` ranks: one shot up to and with the first
  // border, two shot up to the second, a ring above. A border of 0, or one
  // that equals the border before, leaves its algorithm out altogether. Bytes
  // are those of the whole vector as it travels.
  struct Row {
    Operation operation = Operation::kAllReduce;
    int size = 2;
    uint64_t one_shot_max_bytes = 0;
    uint64_t two_shot_max_bytes = 0;

    bool operator==(const Row&) const = default;
  };

  // Borders of the alpha-beta model for 40 us per message at 10 Gbit/s, for
  // every operation that has a choice and every size.
  static AlgorithmTable Default();
  // `algorithm` wherever it is supported, else the default. For benchmarks.
  static AlgorithmTable Only(
      Algorithm algorithm, uint64_t ring_slice_bytes = kDefaultRingSliceBytes);

  // INVALID_ARGUMENT: an operation without a choice, size outside 2..16,
  // borders that do not ascend, a second row for the same operation and size,
  // or slices of less than kMinRingSliceBytes. Rows replace those of the
  // default.
  static absl::StatusOr<AlgorithmTable> FromRows(
      const std::vector<Row>& rows,
      uint64_t ring_slice_bytes = kDefaultRingSliceBytes);
  // {"ring_slice_bytes":1048576,"rows":[{"operation":"all_reduce","size":2,
  // "one_shot_max_bytes":1048576,"two_shot_max_bytes":...}]}; the second border
  // only where there is a two_shot, without slices the default's. Errors as
  // FromRows, and INVALID_ARGUMENT for anything else.
  static absl::StatusOr<AlgorithmTable> FromJson(absl::string_view json);
  // The same from a file, which errors name. Errors also as ReadTableFile.
  static absl::StatusOr<AlgorithmTable> Load(const std::string& path);
  std::string ToJson() const;

  // The one there is where there is no choice; one shot within a single rank.
  Algorithm Choose(Operation operation, uint64_t bytes, int size) const;

  const std::vector<Row>& rows() const { return rows_; }
  uint64_t ring_slice_bytes() const { return ring_slice_bytes_; }
  // Equal tables have equal hashes; for the epoch's configuration.
  uint64_t Hash() const;

  bool operator==(const AlgorithmTable&) const = default;

 private:
  AlgorithmTable() = default;

  std::vector<Row> rows_;  // By operation, then size; always complete.
  uint64_t ring_slice_bytes_ = kDefaultRingSliceBytes;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALGORITHM_TABLE_H_
