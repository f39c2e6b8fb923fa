// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/algorithm_table.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "cluster/collectives/table_file.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

using Json = nlohmann::ordered_json;
using Row = AlgorithmTable::Row;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Operations with more than one algorithm, as rows_ has them.
constexpr Operation kChoices[] = {
    Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter,
    Operation::kBroadcast, Operation::kMatmulReduceScatter};

// The alpha-beta model for all_reduce: one shot takes
// a + (N - 2) o + (N - 1) n b, two shot 2 (a + (N - 2) o) + 2 (N - 1) / N n b,
// with a = 40 us for a message, o = 8 us for each further one and b = 0.87 ns
// for a byte at 10 Gbit/s less its framing. They meet at
// n = N (a + (N - 2) o) / ((N - 1) (N - 2) b); between two ranks they send the
// same bytes, and one shot wins as long as a message's latency counts.
constexpr uint64_t OneShotBorder(int size) {
  constexpr uint64_t kMessage = 40'000, kFurther = 8'000;  // ns
  constexpr uint64_t kBytes = 100, kBytesTake = 87;        // ns
  if (size == 2) return uint64_t{1} << 20;
  const auto n = static_cast<uint64_t>(size);
  return n * (kMessage + (n - 2) * kFurther) * kBytes /
         ((n - 1) * (n - 2) * kBytesTake);
}

// A ring's 2 (N - 2) (a - o) more than two direct exchanges is 7 % of their
// time at 16 ranks and this size, less elsewhere; it avoids that N - 1 senders
// meet at one receiver.
constexpr uint64_t kRingAbove = uint64_t{8} << 20;
// A root that sends its vector N - 1 times loses to a ring as soon as there
// are several frames to pass on behind each other.
constexpr uint64_t kBroadcastRingAbove = kMaxPayloadBytes;

Row DefaultRow(Operation operation, int size) {
  Row row = {.operation = operation, .size = size};
  // Each step has two senders and two receivers of a rank, on a ring or not;
  // directly half the bytes travel on a bf16 wire, and as float32 both take as
  // long (perf/results/prefill.md).
  if (operation == Operation::kMatmulReduceScatter) {
    row.one_shot_max_bytes = row.two_shot_max_bytes = kUnlimited;
    return row;
  }
  row.two_shot_max_bytes = operation == Operation::kBroadcast && size > 2
                               ? kBroadcastRingAbove
                               : kRingAbove;
  row.one_shot_max_bytes = operation == Operation::kAllReduce
                               ? OneShotBorder(size)
                               : row.two_shot_max_bytes;
  // Between two ranks all of them send the same bytes, and the ring sends them
  // over two connections.
  if (operation == Operation::kAllReduce && size == 2) {
    row.two_shot_max_bytes = row.one_shot_max_bytes;
  }
  return row;
}

std::string RowName(const Row& row) {
  return absl::StrCat("algorithm table: ", OperationText(row.operation), " of ",
                      row.size, " ranks");
}

absl::Status CheckRow(const Row& row) {
  if (std::find(std::begin(kChoices), std::end(kChoices), row.operation) ==
      std::end(kChoices)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "algorithm table: a row for operation '", OperationText(row.operation),
        "' (", static_cast<int>(row.operation),
        "), which has one algorithm, want one of ",
        absl::StrJoin(kChoices, ", ", [](std::string* out, Operation choice) {
          absl::StrAppend(out, OperationText(choice));
        })));
  }
  if (row.size < 2 || row.size > kMaxGroupSize) {
    return absl::InvalidArgumentError(
        absl::StrCat(RowName(row), ", want 2 to ", kMaxGroupSize));
  }
  if (row.two_shot_max_bytes < row.one_shot_max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        RowName(row), ": two_shot_max_bytes ", row.two_shot_max_bytes,
        ", want at least one_shot_max_bytes, ", row.one_shot_max_bytes));
  }
  if (row.two_shot_max_bytes != row.one_shot_max_bytes &&
      !Supports(row.operation, Algorithm::kTwoShot)) {
    return absl::InvalidArgumentError(absl::StrCat(
        RowName(row), ": two_shot_max_bytes ", row.two_shot_max_bytes,
        ", want none: there is no two_shot of it"));
  }
  return absl::OkStatus();
}

// rows_ has kChoices in ascending order, each with all sizes.
size_t IndexOf(Operation operation, int size) {
  const auto* choice =
      std::find(std::begin(kChoices), std::end(kChoices), operation);
  return static_cast<size_t>(choice - std::begin(kChoices)) *
             (kMaxGroupSize - 1) +
         static_cast<size_t>(size - 2);
}

absl::Status JsonError(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("algorithm table: ", where, ": ", what));
}

// Returns the text of an unwanted value. Nested values are only named, because
// printing recurses and the file chooses the depth.
std::string Shown(const Json& value) {
  if (value.is_structured()) return absl::StrCat("an ", value.type_name());
  return value.dump(-1, ' ', true, Json::error_handler_t::replace)
      .substr(0, 64);
}

absl::Status ReadNumber(const Json& row, const std::string& key,
                        const std::string& where, uint64_t* out) {
  const auto found = row.find(key);
  if (found == row.end()) return JsonError(where, absl::StrCat("no ", key));
  if (!found->is_number_unsigned()) {
    return JsonError(where, absl::StrCat(key, " ", Shown(*found),
                                         ", want a whole number from 0"));
  }
  *out = found->get<uint64_t>();
  return absl::OkStatus();
}

absl::StatusOr<Row> ReadRow(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    return JsonError(where, absl::StrCat(Shown(json), ", want an object"));
  }
  RF_RETURN_IF_ERROR(CheckTableKeys(
      json, absl::StrCat("algorithm table: ", where),
      {"operation", "size", "one_shot_max_bytes", "two_shot_max_bytes"}));
  Row row;
  const auto operation = json.find("operation");
  if (operation == json.end() || !operation->is_string()) {
    return JsonError(where, "no operation, want its name");
  }
  const absl::StatusOr<Operation> parsed =
      ParseOperation(operation->get_ref<const std::string&>());
  if (!parsed.ok()) {
    return JsonError(where, parsed.status().message());
  }
  row.operation = *parsed;
  uint64_t size = 0;
  RF_RETURN_IF_ERROR(ReadNumber(json, "size", where, &size));
  row.size = static_cast<int>(std::min<uint64_t>(size, kMaxGroupSize + 1));
  RF_RETURN_IF_ERROR(
      ReadNumber(json, "one_shot_max_bytes", where, &row.one_shot_max_bytes));
  row.two_shot_max_bytes = row.one_shot_max_bytes;
  if (Supports(row.operation, Algorithm::kTwoShot) ||
      json.contains("two_shot_max_bytes")) {
    RF_RETURN_IF_ERROR(
        ReadNumber(json, "two_shot_max_bytes", where, &row.two_shot_max_bytes));
  }
  return row;
}

}  // namespace

bool Supports(Operation operation, Algorithm algorithm) {
  if (operation == Operation::kAllGatherMatmul) {
    return algorithm == Algorithm::kRing;
  }
  switch (algorithm) {
    case Algorithm::kOneShot:
      return true;
    case Algorithm::kTwoShot:
      return operation == Operation::kAllReduce;
    case Algorithm::kRing:
      return operation != Operation::kAllToAll &&
             operation != Operation::kBarrier;
  }
  return false;
}

AlgorithmTable AlgorithmTable::Default() {
  AlgorithmTable table;
  for (const Operation operation : kChoices) {
    for (int size = 2; size <= kMaxGroupSize; ++size) {
      table.rows_.push_back(DefaultRow(operation, size));
    }
  }
  return table;
}

AlgorithmTable AlgorithmTable::Only(Algorithm algorithm,
                                    uint64_t ring_slice_bytes) {
  AlgorithmTable table = Default();
  table.ring_slice_bytes_ = ring_slice_bytes;
  for (Row& row : table.rows_) {
    if (!Supports(row.operation, algorithm)) continue;
    row.one_shot_max_bytes = algorithm == Algorithm::kOneShot ? kUnlimited : 0;
    row.two_shot_max_bytes = algorithm == Algorithm::kRing ? 0 : kUnlimited;
  }
  return table;
}

AlgorithmTable AlgorithmTable::InRankOrder() const {
  AlgorithmTable table = *this;
  for (Row& row : table.rows_) {
    if (row.operation == Operation::kAllReduce) {
      row.two_shot_max_bytes = kUnlimited;
    } else if (row.operation == Operation::kReduceScatter ||
               row.operation == Operation::kMatmulReduceScatter) {
      row.one_shot_max_bytes = row.two_shot_max_bytes = kUnlimited;
    }
  }
  return table;
}

absl::StatusOr<AlgorithmTable> AlgorithmTable::FromRows(
    const std::vector<Row>& rows, uint64_t ring_slice_bytes) {
  if (ring_slice_bytes != 0 && ring_slice_bytes < kMinRingSliceBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "algorithm table: ring_slice_bytes ", ring_slice_bytes,
        ", want 0 (all at once) or at least ", kMinRingSliceBytes));
  }
  AlgorithmTable table = Default();
  table.ring_slice_bytes_ = ring_slice_bytes;
  std::vector<bool> replaced(table.rows_.size());
  for (const Row& row : rows) {
    RF_RETURN_IF_ERROR(CheckRow(row));
    const size_t index = IndexOf(row.operation, row.size);
    if (replaced[index]) {
      return absl::InvalidArgumentError(
          absl::StrCat(RowName(row), ": a second row, want one"));
    }
    replaced[index] = true;
    table.rows_[index] = row;
  }
  return table;
}

absl::StatusOr<AlgorithmTable> AlgorithmTable::FromJson(
    absl::string_view json) {
  if (json.size() > kMaxTableBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm table: more than ", kMaxTableBytes, " bytes"));
  }
  const Json document = Json::parse(json.begin(), json.end(), nullptr,
                                    /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return absl::InvalidArgumentError(
        "algorithm table: not JSON, want {\"rows\":[...]}");
  }
  if (!document.is_object() || !document.contains("rows") ||
      !document["rows"].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "algorithm table: ", Shown(document), ", want {\"rows\":[...]}"));
  }
  RF_RETURN_IF_ERROR(CheckTableKeys(document, "algorithm table: the table",
                                    {"ring_slice_bytes", "rows"}));
  uint64_t ring_slice_bytes = kDefaultRingSliceBytes;
  if (document.contains("ring_slice_bytes")) {
    RF_RETURN_IF_ERROR(ReadNumber(document, "ring_slice_bytes", "the table",
                                  &ring_slice_bytes));
  }
  std::vector<Row> rows;
  for (const Json& item : document["rows"]) {
    RF_ASSIGN_OR_RETURN(const Row row,
                        ReadRow(item, absl::StrCat("rows[", rows.size(), "]")));
    rows.push_back(row);
  }
  return FromRows(rows, ring_slice_bytes);
}

absl::StatusOr<AlgorithmTable> AlgorithmTable::Load(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const std::string json,
                      ReadTableFile(path, "an algorithm table"));
  absl::StatusOr<AlgorithmTable> table = FromJson(json);
  if (table.ok()) return table;
  return absl::Status(table.status().code(),
                      absl::StrCat(path, ": ", table.status().message()));
}

std::string AlgorithmTable::ToJson() const {
  std::vector<std::string> lines;
  for (const Row& row : rows_) {
    Json json = {{"operation", std::string(OperationText(row.operation))},
                 {"size", row.size},
                 {"one_shot_max_bytes", row.one_shot_max_bytes}};
    if (Supports(row.operation, Algorithm::kTwoShot)) {
      json["two_shot_max_bytes"] = row.two_shot_max_bytes;
    }
    lines.push_back(json.dump());
  }
  return absl::StrCat("{\"ring_slice_bytes\":", ring_slice_bytes_,
                      ",\"rows\":[\n", absl::StrJoin(lines, ",\n"), "\n]}\n");
}

Algorithm AlgorithmTable::Choose(Operation operation, uint64_t bytes,
                                 int size) const {
  if (!Supports(operation, Algorithm::kOneShot)) return Algorithm::kRing;
  if (size < 2 || size > kMaxGroupSize ||
      !Supports(operation, Algorithm::kRing)) {
    return Algorithm::kOneShot;
  }
  const Row& row = rows_[IndexOf(operation, size)];
  if (bytes <= row.one_shot_max_bytes && row.one_shot_max_bytes > 0) {
    return Algorithm::kOneShot;
  }
  if (bytes <= row.two_shot_max_bytes &&
      row.two_shot_max_bytes > row.one_shot_max_bytes) {
    return Algorithm::kTwoShot;
  }
  return Algorithm::kRing;
}

uint64_t AlgorithmTable::Hash() const {
  const std::string text = ToJson();
  return XXH64(text.data(), text.size(), /*seed=*/0);
}

}  // namespace ringfleet::cluster
