// SPDX-License-Identifier: Apache-2.0
// Measured cuts of the products that are fused with an exchange, by processor
// and shape, as `ringfleet collectives --tune` writes them; part of what an
// epoch's ranks agree in. They decide about time only: no cut changes a bit of
// a result.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_TILE_TABLE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_TILE_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

class TileTable {
 public:
  // What a cut was measured for: [rows, inputs] times [inputs, outputs] in all,
  // over `world` ranks, with weights of `dtype` in memory.
  struct Key {
    std::string cpu;  // As /proc/cpuinfo names the model.
    Operation operation = Operation::kAllGatherMatmul;
    uint64_t rows = 0;
    uint64_t inputs = 0;
    uint64_t outputs = 0;
    std::string dtype;
    int world = 0;

    bool operator==(const Key&) const = default;
  };
  struct Row {
    Key key;
    uint64_t tile_columns = 0;
    uint64_t segment_bytes = 0;  // Must be equal on all ranks.
    uint64_t piece_rows = 0;

    bool operator==(const Row&) const = default;
  };

  // No part of a cut is larger.
  static constexpr uint64_t kMaxCut = uint64_t{1} << 30;

  // {"rows":[{"cpu":"...","operation":"all_gather_matmul","m":512,"n":24576,
  // "k":1536,"dtype":"int8","world":2,"tile_columns":320,"segment_bytes":65536,
  // "piece_rows":16}]}. INVALID_ARGUMENT names the row and the field; a key or
  // a dtype that no product has is one, because the row would never be taken.
  static absl::StatusOr<TileTable> FromJson(absl::string_view json);
  // The same from a file, which errors name. Errors also as ReadTableFile.
  static absl::StatusOr<TileTable> Load(const std::string& path);
  std::string ToJson() const;

  // What was measured with the nearest number of rows, up to twice as many or
  // half, and else as `key` says; 0: nothing was. All ranks of an operation
  // need one segment, whatever their processors are: it is the first row's that
  // is nearest, of any processor.
  struct Cut {
    uint64_t tile_columns = 0;
    uint64_t segment_bytes = 0;
    uint64_t piece_rows = 0;

    bool operator==(const Cut&) const = default;
  };
  Cut Nearest(const Key& key) const;
  // Replaces the row of the same key.
  void Set(Row row);

  const std::vector<Row>& rows() const { return rows_; }
  uint64_t Hash() const;

 private:
  std::vector<Row> rows_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_TILE_TABLE_H_
