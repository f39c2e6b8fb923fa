// SPDX-License-Identifier: Apache-2.0
// A table that chooses the algorithm of each collective operation. The choice
// depends on the operation, its bytes and the number of ranks. It never depends
// on time, so the order of a sum, and with it the sum's last bits, is equal in
// every run. All ranks of an epoch have equal tables. all_reduce.h explains one
// shot and two shot, ring.h the ring.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_ALGORITHM_TABLE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_ALGORITHM_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

// Largest number of ranks in a group.
inline constexpr int kMaxGroupSize = 16;

// Default of ring_slice_bytes: the bytes of one slice of a share in a ring.
// With ring_slice_bytes 0 a share is one slice.
inline constexpr uint64_t kDefaultRingSliceBytes = uint64_t{1} << 20;
// Smallest allowed slice. Shorter slices would cost too many frames.
inline constexpr uint64_t kMinRingSliceBytes = uint64_t{1} << 16;

// Returns true if `algorithm` can carry `operation`. Two shot carries
// all_reduce only. A ring carries every operation but all_to_all and barrier.
// One shot carries every operation but all_gather_matmul.
bool Supports(Operation operation, Algorithm algorithm);

// Returns true if the operation is fused with a product.
constexpr bool IsFused(Operation operation) {
  return operation == Operation::kAllGatherMatmul ||
         operation == Operation::kMatmulReduceScatter;
}

class AlgorithmTable {
 public:
  // The algorithms of one operation between `size` ranks. Both limits count the
  // encoded bytes of the whole vector. Vectors of at most one_shot_max_bytes go
  // by one shot, longer ones of at most two_shot_max_bytes by two shot, and all
  // others by a ring. one_shot_max_bytes 0 leaves one shot out.
  // two_shot_max_bytes equal to one_shot_max_bytes leaves two shot out.
  struct Row {
    Operation operation = Operation::kAllReduce;
    int size = 2;
    uint64_t one_shot_max_bytes = 0;
    uint64_t two_shot_max_bytes = 0;

    bool operator==(const Row&) const = default;
  };

  // Returns the default table. It has a row for every size and every operation
  // with more than one algorithm. Its limits follow from an alpha-beta model
  // with 40 us per message and 10 Gbit/s.
  static AlgorithmTable Default();
  // Returns a table for benchmarks. It chooses `algorithm` for every operation
  // that `algorithm` can carry, and the default for the others.
  static AlgorithmTable Only(
      Algorithm algorithm, uint64_t ring_slice_bytes = kDefaultRingSliceBytes);

  // Returns this table with a direct algorithm in place of each ring that sums.
  // Every sum is then added in rank order, whatever the size of the vector, so
  // an element's bits do not depend on the elements beside it.
  AlgorithmTable InRankOrder() const;

  // Returns the default table, with each of `rows` in place of the default row
  // of its operation and size. INVALID_ARGUMENT: an operation with one
  // algorithm, a size outside 2..16, two_shot_max_bytes below
  // one_shot_max_bytes, or unequal to it where two shot cannot carry the
  // operation, a second row for one operation and size, or
  // ring_slice_bytes from 1 to kMinRingSliceBytes - 1.
  static absl::StatusOr<AlgorithmTable> FromRows(
      const std::vector<Row>& rows,
      uint64_t ring_slice_bytes = kDefaultRingSliceBytes);
  // Reads {"ring_slice_bytes":1048576,"rows":[{"operation":"all_reduce",
  // "size":2,"one_shot_max_bytes":1048576,"two_shot_max_bytes":...}]}. Only
  // all_reduce has two_shot_max_bytes. ring_slice_bytes may be left out.
  // Errors: those of FromRows. INVALID_ARGUMENT: the text is not such JSON.
  static absl::StatusOr<AlgorithmTable> FromJson(absl::string_view json);
  // Reads a file with the JSON of FromJson. Errors: those of ReadTableFile and
  // FromJson, with the path.
  static absl::StatusOr<AlgorithmTable> Load(const std::string& path);
  std::string ToJson() const;

  // Returns the algorithm for an operation of `bytes` encoded bytes between
  // `size` ranks. A single rank gets one shot.
  Algorithm Choose(Operation operation, uint64_t bytes, int size) const;

  const std::vector<Row>& rows() const { return rows_; }
  uint64_t ring_slice_bytes() const { return ring_slice_bytes_; }
  // Returns a hash by which the ranks of an epoch check that their tables are
  // equal.
  uint64_t Hash() const;

  bool operator==(const AlgorithmTable&) const = default;

 private:
  AlgorithmTable() = default;

  std::vector<Row> rows_;  // Sorted by operation, then size; complete.
  uint64_t ring_slice_bytes_ = kDefaultRingSliceBytes;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALGORITHM_TABLE_H_
