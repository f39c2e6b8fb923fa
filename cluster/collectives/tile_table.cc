// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/tile_table.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/table_file.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

using TileJson = nlohmann::ordered_json;

// The types of weights that a fused product has.
constexpr absl::string_view kProductDtypes[] = {"f32", "bf16", "int8", "int4"};

absl::Status TileTableError(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tile table: ", where, ": ", what));
}

absl::Status ReadField(const TileJson& json, const char* name,
                       const std::string& where, std::string* out) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) {
    return TileTableError(where, absl::StrCat(name, ", want a string"));
  }
  *out = found->get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadField(const TileJson& json, const char* name,
                       const std::string& where, uint64_t* out) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_unsigned()) {
    return TileTableError(where, absl::StrCat(name, ", want a whole number"));
  }
  *out = found->get<uint64_t>();
  return absl::OkStatus();
}

// How many times more the larger is.
double Ratio(uint64_t a, uint64_t b) {
  const auto less = static_cast<double>(std::max<uint64_t>(std::min(a, b), 1));
  return static_cast<double>(std::max(a, b)) / less;
}

absl::StatusOr<TileTable::Row> RowFromJson(const TileJson& json,
                                           const std::string& where) {
  if (!json.is_object()) return TileTableError(where, "want an object");
  RF_RETURN_IF_ERROR(
      CheckTableKeys(json, absl::StrCat("tile table: ", where),
                     {"cpu", "operation", "m", "n", "k", "dtype", "world",
                      "tile_columns", "segment_bytes", "piece_rows"}));
  TileTable::Row row;
  std::string operation;
  uint64_t world = 0;
  RF_RETURN_IF_ERROR(ReadField(json, "cpu", where, &row.key.cpu));
  RF_RETURN_IF_ERROR(ReadField(json, "operation", where, &operation));
  RF_RETURN_IF_ERROR(ReadField(json, "m", where, &row.key.rows));
  RF_RETURN_IF_ERROR(ReadField(json, "n", where, &row.key.outputs));
  RF_RETURN_IF_ERROR(ReadField(json, "k", where, &row.key.inputs));
  RF_RETURN_IF_ERROR(ReadField(json, "dtype", where, &row.key.dtype));
  RF_RETURN_IF_ERROR(ReadField(json, "world", where, &world));
  RF_RETURN_IF_ERROR(ReadField(json, "tile_columns", where, &row.tile_columns));
  RF_RETURN_IF_ERROR(
      ReadField(json, "segment_bytes", where, &row.segment_bytes));
  RF_RETURN_IF_ERROR(ReadField(json, "piece_rows", where, &row.piece_rows));
  const absl::StatusOr<Operation> parsed = ParseOperation(operation);
  if (!parsed.ok() || !IsFused(*parsed)) {
    return TileTableError(where, absl::StrCat("operation '", operation,
                                              "', want all_gather_matmul or "
                                              "matmul_reduce_scatter"));
  }
  row.key.operation = *parsed;
  if (std::find(std::begin(kProductDtypes), std::end(kProductDtypes),
                row.key.dtype) == std::end(kProductDtypes)) {
    return TileTableError(
        where,
        absl::StrCat("dtype '", row.key.dtype.substr(0, 64), "', want one of ",
                     absl::StrJoin(kProductDtypes, ", ")));
  }
  if (world < 1 || world > kMaxGroupSize) {
    return TileTableError(
        where, absl::StrCat("world ", world, ", want 1 to ", kMaxGroupSize));
  }
  row.key.world = static_cast<int>(world);
  for (const uint64_t cut :
       {row.tile_columns, row.segment_bytes, row.piece_rows}) {
    if (cut < 1 || cut > TileTable::kMaxCut) {
      return TileTableError(
          where,
          absl::StrCat("a cut of ", cut, ", want 1 to ", TileTable::kMaxCut));
    }
  }
  return row;
}

bool AlikeButForCpuAndRows(const TileTable::Key& a, const TileTable::Key& b) {
  return a.operation == b.operation && a.inputs == b.inputs &&
         a.outputs == b.outputs && a.dtype == b.dtype && a.world == b.world;
}

}  // namespace

absl::StatusOr<TileTable> TileTable::FromJson(absl::string_view text) {
  const TileJson json = TileJson::parse(text.begin(), text.end(),
                                        /*callback=*/nullptr,
                                        /*allow_exceptions=*/false);
  const auto found = json.is_object() ? json.find("rows") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_array()) {
    return TileTableError("document", "want {\"rows\":[...]}");
  }
  RF_RETURN_IF_ERROR(CheckTableKeys(json, "tile table: document", {"rows"}));
  TileTable table;
  for (size_t i = 0; i < found->size(); ++i) {
    RF_ASSIGN_OR_RETURN(Row row,
                        RowFromJson((*found)[i], absl::StrCat("row ", i)));
    table.Set(std::move(row));
  }
  return table;
}

absl::StatusOr<TileTable> TileTable::Load(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const std::string text,
                      ReadTableFile(path, "a tile table"));
  absl::StatusOr<TileTable> table = FromJson(text);
  if (!table.ok()) return Annotate(table.status(), path);
  return table;
}

std::string TileTable::ToJson() const {
  TileJson rows = TileJson::array();
  for (const Row& row : rows_) {
    rows.push_back(
        {{"cpu", row.key.cpu},
         {"operation", std::string(OperationText(row.key.operation))},
         {"m", row.key.rows},
         {"n", row.key.outputs},
         {"k", row.key.inputs},
         {"dtype", row.key.dtype},
         {"world", row.key.world},
         {"tile_columns", row.tile_columns},
         {"segment_bytes", row.segment_bytes},
         {"piece_rows", row.piece_rows}});
  }
  return TileJson{{"rows", rows}}.dump(1) + "\n";
}

TileTable::Cut TileTable::Nearest(const Key& key) const {
  const Row* own = nullptr;
  const Row* any = nullptr;
  const auto take_if_nearer = [&](const Row& row, const Row** best) {
    if (*best == nullptr ||
        Ratio(row.key.rows, key.rows) < Ratio((*best)->key.rows, key.rows)) {
      *best = &row;
    }
  };
  for (const Row& row : rows_) {
    if (!AlikeButForCpuAndRows(row.key, key)) continue;
    if (Ratio(row.key.rows, key.rows) > 2) continue;
    take_if_nearer(row, &any);
    if (row.key.cpu == key.cpu) take_if_nearer(row, &own);
  }
  Cut cut;
  if (any != nullptr) cut.segment_bytes = any->segment_bytes;
  if (own != nullptr) {
    cut.tile_columns = own->tile_columns;
    cut.piece_rows = own->piece_rows;
  }
  return cut;
}

uint64_t TileTable::Hash() const {
  const std::string text = ToJson();
  return XXH64(text.data(), text.size(), /*seed=*/0);
}

void TileTable::Set(Row row) {
  for (Row& other : rows_) {
    if (other.key == row.key) {
      other = std::move(row);
      return;
    }
  }
  rows_.push_back(std::move(row));
}

}  // namespace ringfleet::cluster
