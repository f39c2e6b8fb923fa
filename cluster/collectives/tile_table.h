// SPDX-License-Identifier: Apache-2.0
// Measured cuts of the products that are fused with an exchange, by processor
// and shape. `ringfleet collectives --tune` writes them, and the ranks of an
// epoch agree in them. A cut changes the time of a product, never a bit of its
// result.
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
  // The product that a cut was measured for: [rows, inputs] times [inputs,
  // outputs] in all, over `world` ranks, with weights of `dtype` in memory.
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

  // The largest value of a cut's fields.
  static constexpr uint64_t kMaxCut = uint64_t{1} << 30;

  // Reads {"rows":[{"cpu":"...","operation":"all_gather_matmul","m":512,
  // "n":24576,"k":1536,"dtype":"int8","world":2,"tile_columns":320,
  // "segment_bytes":65536,"piece_rows":16}]}. INVALID_ARGUMENT names the row
  // and the field. An unknown key or dtype is an error too, because no product
  // would take the row.
  static absl::StatusOr<TileTable> FromJson(absl::string_view json);
  // Reads a file. Errors name the file. Further errors: those of ReadTableFile.
  static absl::StatusOr<TileTable> Load(const std::string& path);
  std::string ToJson() const;

  // The cut of a product. Zeros: none was measured.
  struct Cut {
    uint64_t tile_columns = 0;
    uint64_t segment_bytes = 0;
    uint64_t piece_rows = 0;

    bool operator==(const Cut&) const = default;
  };
  // Returns the cut measured for `key`, or for the nearest row count within a
  // factor of two. segment_bytes must be equal on all ranks, whatever their
  // processors are, so it comes from the first of the nearest rows of any
  // processor.
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
