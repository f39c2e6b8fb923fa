// SPDX-License-Identifier: Apache-2.0
// The choice of the algorithm that carries an operation. It depends on the
// operation, its bytes and the number of ranks, never on time: the order of a
// sum, and so its last bits, must not change from run to run. All ranks of an
// epoch agree in the table.
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

// Bytes of a share that a ring sends at a time (see ring.h). 0: the whole
// share.
inline constexpr uint64_t kDefaultRingSliceBytes = uint64_t{1} << 20;
// Shorter slices would be a flood of frames.
inline constexpr uint64_t kMinRingSliceBytes = uint64_t{1} << 16;

// Returns true if the algorithm carries the operation: two_shot all_reduce,
// ring all but all_to_all and barrier, one_shot all but all_gather_matmul.
bool Supports(Operation operation, Algorithm algorithm);

// Returns true if the operation is fused with a product.
constexpr bool IsFused(Operation operation) {
  return operation == Operation::kAllGatherMatmul ||
         operation == Operation::kMatmulReduceScatter;
}

class AlgorithmTable {
 public:
  // One operation between `size` ranks: one shot up to and with the first
  // border, two shot up to and with the second, a ring above. A border of 0, or
  // one that equals the border before, leaves its algorithm out. Borders count
  // the bytes of the whole vector on the wire.
  struct Row {
    Operation operation = Operation::kAllReduce;
    int size = 2;
    uint64_t one_shot_max_bytes = 0;
    uint64_t two_shot_max_bytes = 0;

    bool operator==(const Row&) const = default;
  };

  // Returns the borders of the alpha-beta model for 40 us per message at
  // 10 Gbit/s, for every size and every operation that has a choice.
  static AlgorithmTable Default();
  // Returns a table for benchmarks: `algorithm` for every operation that it
  // carries, else the default.
  static AlgorithmTable Only(
      Algorithm algorithm, uint64_t ring_slice_bytes = kDefaultRingSliceBytes);

  // Replaces rows of the default by `rows`. INVALID_ARGUMENT: an operation
  // without a choice, a size outside 2..16, borders that do not ascend, a
  // second row for one operation and size, or slices of less than
  // kMinRingSliceBytes.
  static absl::StatusOr<AlgorithmTable> FromRows(
      const std::vector<Row>& rows,
      uint64_t ring_slice_bytes = kDefaultRingSliceBytes);
  // Reads {"ring_slice_bytes":1048576,"rows":[{"operation":"all_reduce",
  // "size":2,"one_shot_max_bytes":1048576,"two_shot_max_bytes":...}]}. The
  // second border belongs to operations with a two_shot. ring_slice_bytes may
  // be left out. Errors: those of FromRows; INVALID_ARGUMENT for other JSON.
  static absl::StatusOr<AlgorithmTable> FromJson(absl::string_view json);
  // Reads a file. Errors name the file. Further errors: those of ReadTableFile.
  static absl::StatusOr<AlgorithmTable> Load(const std::string& path);
  std::string ToJson() const;

  // Returns one shot for a single rank, and the only algorithm of an operation
  // that has no choice.
  Algorithm Choose(Operation operation, uint64_t bytes, int size) const;

  const std::vector<Row>& rows() const { return rows_; }
  uint64_t ring_slice_bytes() const { return ring_slice_bytes_; }
  // Returns a hash for the epoch's configuration.
  uint64_t Hash() const;

  bool operator==(const AlgorithmTable&) const = default;

 private:
  AlgorithmTable() = default;

  std::vector<Row> rows_;  // By operation, then size; always complete.
  uint64_t ring_slice_bytes_ = kDefaultRingSliceBytes;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALGORITHM_TABLE_H_
