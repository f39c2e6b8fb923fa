// SPDX-License-Identifier: Apache-2.0
// Tables of measured tile and frame sizes ("cuts") of the products that are
// fused with a collective, by processor and shape. `ringfleet collectives
// --tune` writes a table. The ranks of an epoch have equal tables. A cut
// changes the time of a product, never a bit of its result.
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
  // The product for which a cut was measured: activations [rows, inputs] times
  // weights [inputs, outputs]. The shapes are those of all `world` ranks
  // together. `dtype` is the type of the weights in memory.
  struct Key {
    std::string cpu;  // "model name" of /proc/cpuinfo.
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
    uint64_t segment_bytes = 0;  // Equal on all ranks.
    uint64_t piece_rows = 0;

    bool operator==(const Row&) const = default;
  };

  // The largest value of a cut's fields.
  static constexpr uint64_t kMaxCut = uint64_t{1} << 30;

  // Reads {"rows":[{"cpu":"...","operation":"all_gather_matmul","m":512,
  // "n":24576,"k":1536,"dtype":"int8","world":2,"tile_columns":320,
  // "segment_bytes":65536,"piece_rows":16}]}. m is rows, n is outputs and k is
  // inputs. INVALID_ARGUMENT names the row and the field. An unknown key or
  // dtype is an error, because no product would use its row.
  static absl::StatusOr<TileTable> FromJson(absl::string_view json);
  // Reads a file with the JSON of FromJson. Errors: those of ReadTableFile and
  // FromJson, with the path.
  static absl::StatusOr<TileTable> Load(const std::string& path);
  std::string ToJson() const;

  // The cut of a product: outputs in a tile, bytes of a frame, and fewest rows
  // in a piece. 0: not measured.
  struct Cut {
    uint64_t tile_columns = 0;
    uint64_t segment_bytes = 0;
    uint64_t piece_rows = 0;

    bool operator==(const Cut&) const = default;
  };
  // Returns the cut measured for `key`, or for the nearest number of rows
  // within a factor of two. segment_bytes comes from the nearest entry of any
  // processor, because segment_bytes must be equal on ranks with different
  // processors. Among equally near entries the first one counts.
  Cut Nearest(const Key& key) const;
  // Adds `row`, or replaces the row with an equal key.
  void Set(Row row);

  const std::vector<Row>& rows() const { return rows_; }
  uint64_t Hash() const;

 private:
  std::vector<Row> rows_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_TILE_TABLE_H_
