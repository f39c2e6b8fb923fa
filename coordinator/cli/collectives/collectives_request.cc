// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/collectives_request.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/model/dtype_names.h"
#include "cluster/process/status_macros.h"
#include "cluster/transport/transport_kind.h"
#include "cluster/wire/op_descriptor.h"
#include "coordinator/cli/collectives/byte_sizes.h"
#include "coordinator/cli/collectives/calibration.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::Algorithm;
using cluster::Operation;
using cluster::Wire;

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter,
    Operation::kAllToAll,  Operation::kBroadcast, Operation::kBarrier};
constexpr Algorithm kAlgorithms[] = {Algorithm::kOneShot, Algorithm::kTwoShot,
                                     Algorithm::kRing};
constexpr uint64_t kDefaultBytes[] = {4, 14 << 10, 28 << 10, 1792 << 10,
                                      7 << 20};
constexpr uint32_t kConnectTimeoutMs = 30'000;

// Products of R1: q_b and o, and rows of a prompt.
constexpr uint64_t kGatherInputs = 1536, kGatherOutputs = 24576;
constexpr uint64_t kScatterInputs = 16384, kScatterOutputs = 7168;
constexpr uint64_t kDefaultRows = 512;
constexpr char kDefaultDtype[] = "int8";
constexpr uint64_t kMostRows = uint64_t{1} << 20;
// Cuts that a tuning tries, beside the default.
constexpr uint64_t kTileColumns[] = {64, 128, 320, 1024};
constexpr uint64_t kSegmentBytes[] = {16 << 10, 64 << 10, 256 << 10};
constexpr uint64_t kPieceRows[] = {8, 16, 32};

// An algorithm to ask for; nothing: as the table says.
using Choice = std::optional<Algorithm>;

absl::Status Usage(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("usage: ", text));
}

absl::Status Usage(absl::string_view option, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("usage: ", option, ": ", status.message()));
}

// The operations, and whether they were listed by name.
absl::StatusOr<std::vector<Operation>> Operations(
    const CollectivesOptions& options, bool* by_name) {
  *by_name = false;
  if (options.ops.empty() && options.tune) {
    return std::vector<Operation>{Operation::kAllGatherMatmul,
                                  Operation::kMatmulReduceScatter};
  }
  if (options.ops.empty()) {
    return options.calibrate ? CalibratedOperations()
                             : std::vector<Operation>{Operation::kAllReduce};
  }
  if (options.ops == "all") {
    if (options.calibrate) return CalibratedOperations();
    return std::vector<Operation>(std::begin(kOperations),
                                  std::end(kOperations));
  }
  *by_name = true;
  std::vector<Operation> operations;
  for (const absl::string_view name : absl::StrSplit(options.ops, ',')) {
    const absl::StatusOr<Operation> operation = cluster::ParseOperation(name);
    if (!operation.ok()) return Usage("--op", operation.status());
    const std::vector<Operation> calibrated = CalibratedOperations();
    if (options.calibrate && std::find(calibrated.begin(), calibrated.end(),
                                       *operation) == calibrated.end()) {
      return Usage(absl::StrCat(
          "--calibrate --op ", name, ", want some of ",
          absl::StrJoin(calibrated, ", ", [](std::string* out, Operation one) {
            absl::StrAppend(out, cluster::OperationText(one));
          })));
    }
    if (options.tune && !cluster::IsFused(*operation)) {
      return Usage(absl::StrCat("--tune --op ", name,
                                ", want all_gather_matmul or "
                                "matmul_reduce_scatter"));
    }
    operations.push_back(*operation);
  }
  return operations;
}

// Refuses options for products without a product, and two sizes of one matrix.
absl::Status CheckProductOptions(const CollectivesOptions& options,
                                 const std::vector<Operation>& operations) {
  const auto is_fused = [](Operation one) { return cluster::IsFused(one); };
  if (std::none_of(operations.begin(), operations.end(), is_fused)) {
    const auto number = [](uint64_t value) {
      return value > 0 ? absl::StrCat(value) : "";
    };
    const std::pair<const char*, std::string> of_products[] = {
        {"--m", options.m},
        {"--n", number(options.n)},
        {"--k", number(options.k)},
        {"--dtype", options.dtype},
        {"--tiles", options.tiles},
        {"--threads", number(static_cast<uint64_t>(options.threads))}};
    for (const auto& [name, value] : of_products) {
      if (value.empty()) continue;
      return Usage(absl::StrCat(
          name, " ", value, " with --op ",
          absl::StrJoin(operations, ",",
                        [](std::string* out, Operation one) {
                          absl::StrAppend(out, cluster::OperationText(one));
                        }),
          ": nothing is multiplied, want --op all_gather_matmul or "
          "matmul_reduce_scatter"));
    }
  }
  if (std::all_of(operations.begin(), operations.end(), is_fused) &&
      !options.m.empty() && !options.bytes.empty()) {
    return Usage(absl::StrCat("--bytes ", options.bytes, " with --m ",
                              options.m,
                              ": each says how many rows all_gather_matmul and "
                              "matmul_reduce_scatter have, want one of them"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Choice>> Choices(const CollectivesOptions& options) {
  if (options.calibrate) {
    if (options.algos != "auto") {
      return Usage(
          absl::StrCat("--calibrate --algo ", options.algos,
                       ": it measures all algorithms, want no --algo"));
    }
    return std::vector<Choice>(std::begin(kAlgorithms), std::end(kAlgorithms));
  }
  std::vector<Choice> choices;
  for (const absl::string_view name : absl::StrSplit(options.algos, ',')) {
    if (name == "auto") {
      choices.push_back(std::nullopt);
      continue;
    }
    const absl::StatusOr<Algorithm> algorithm = cluster::ParseAlgorithm(name);
    if (!algorithm.ok()) {
      return Usage("--algo", absl::InvalidArgumentError(absl::StrCat(
                                 algorithm.status().message(), ", auto")));
    }
    choices.push_back(*algorithm);
  }
  return choices;
}

absl::StatusOr<std::vector<v1::WireDtype>> Wires(
    const CollectivesOptions& options) {
  std::vector<v1::WireDtype> wires;
  for (const absl::string_view name : absl::StrSplit(options.wires, ',')) {
    const absl::StatusOr<Wire> wire = cluster::ParseWire(name);
    if (!wire.ok()) return Usage("--wire", wire.status());
    wires.push_back(cluster::WireToProto(*wire));
  }
  if (options.calibrate && wires.size() > 1) {
    return Usage(absl::StrCat("--calibrate --wire ", options.wires,
                              ": want one wire; borders are in bytes as they "
                              "travel and hold for all"));
  }
  return wires;
}

absl::StatusOr<std::vector<uint64_t>> Sizes(const CollectivesOptions& options) {
  if (!options.bytes.empty()) return ParseByteSizes(options.bytes);
  if (options.calibrate) return CalibrationLadder();
  return std::vector<uint64_t>(std::begin(kDefaultBytes),
                               std::end(kDefaultBytes));
}

absl::Status NoSuchAlgorithm(Operation operation, Algorithm algorithm) {
  std::vector<absl::string_view> supported;
  for (const Algorithm other : kAlgorithms) {
    if (cluster::Supports(operation, other)) {
      supported.push_back(cluster::AlgorithmText(other));
    }
  }
  return Usage(absl::StrCat("--op ", cluster::OperationText(operation),
                            " --algo ", cluster::AlgorithmText(algorithm),
                            ": there is none, want auto or ",
                            absl::StrJoin(supported, " or ")));
}

absl::StatusOr<std::vector<uint64_t>> Rows(const CollectivesOptions& options,
                                           uint64_t row_elements) {
  std::vector<uint64_t> rows;
  if (options.m.empty() && options.bytes.empty()) return {{kDefaultRows}};
  if (options.m.empty()) {
    RF_ASSIGN_OR_RETURN(const std::vector<uint64_t> sizes,
                        ParseByteSizes(options.bytes));
    for (const uint64_t bytes : sizes) {
      rows.push_back(
          std::max<uint64_t>(bytes / sizeof(float) / row_elements, 1));
    }
    return rows;
  }
  for (const absl::string_view text : absl::StrSplit(options.m, ',')) {
    uint64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 1 || value > kMostRows) {
      return Usage(
          absl::StrCat("--m '", text, "', want rows, 1 to ", kMostRows));
    }
    rows.push_back(value);
  }
  return rows;
}

// Protocol numbers are those of a frame's op_descriptor (types.proto).
void SetAlgorithm(const Choice& choice, v1::CollectiveCase* to) {
  if (!choice.has_value()) return;
  to->set_algorithm(static_cast<v1::CollectiveAlgorithm>(*choice));
}

// The products of one operation, each with every cut of a tuning.
absl::Status AddFused(const CollectivesOptions& options, Operation operation,
                      const std::vector<v1::WireDtype>& wires,
                      const std::vector<Choice>& choices,
                      v1::MeasureCollectivesRequest* request) {
  const bool gathers = operation == Operation::kAllGatherMatmul;
  const uint64_t k =
      options.k > 0 ? options.k : (gathers ? kGatherInputs : kScatterInputs);
  const uint64_t n =
      options.n > 0 ? options.n : (gathers ? kGatherOutputs : kScatterOutputs);
  RF_ASSIGN_OR_RETURN(const std::vector<uint64_t> rows,
                      Rows(options, gathers ? k : n));
  const absl::StatusOr<v1::Dtype> dtype = cluster::ParseWeightDtype(
      options.dtype.empty() ? kDefaultDtype : options.dtype);
  if (!dtype.ok()) return Usage("--dtype", dtype.status());
  if (*dtype == v1::DTYPE_INT4_EXPERTS || *dtype == v1::DTYPE_NATIVE) {
    return Usage(absl::StrCat("--dtype ", options.dtype,
                              ": one product, want f32, bf16, int8 or int4"));
  }
  const auto add = [&](v1::WireDtype wire, const Choice& choice, uint64_t m) {
    v1::CollectiveCase* added = request->add_cases();
    added->set_operation(static_cast<v1::CollectiveOperation>(operation));
    SetAlgorithm(choice, added);
    added->set_wire(wire);
    v1::FusedProduct* product = added->mutable_product();
    product->set_rows(m);
    product->set_inputs(k);
    product->set_outputs(n);
    product->set_dtype(*dtype);
    added->set_bytes(m * (gathers ? k : n) * sizeof(float));
    return product;
  };
  // Rows travel as the product reads them.
  const std::vector<v1::WireDtype> as_read = {*dtype == v1::DTYPE_F32 ||
                                                      *dtype == v1::DTYPE_BF16
                                                  ? v1::WIRE_DTYPE_F32
                                                  : v1::WIRE_DTYPE_INT8};
  for (const v1::WireDtype wire : gathers ? as_read : wires) {
    for (const uint64_t m : rows) {
      for (const Choice& choice : choices) add(wire, choice, m);
      if (!options.tune) continue;
      for (const uint64_t columns : kTileColumns) {
        for (const uint64_t segment_bytes : kSegmentBytes) {
          for (const uint64_t piece : kPieceRows) {
            v1::FusedTiles* tiles =
                add(wire, choices.front(), m)->mutable_tiles();
            tiles->set_tile_columns(columns);
            tiles->set_segment_bytes(segment_bytes);
            tiles->set_piece_rows(piece);
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AddCases(const CollectivesOptions& options,
                      v1::MeasureCollectivesRequest* request) {
  bool by_name = false;
  RF_ASSIGN_OR_RETURN(const std::vector<Operation> operations,
                      Operations(options, &by_name));
  RF_RETURN_IF_ERROR(CheckProductOptions(options, operations));
  RF_ASSIGN_OR_RETURN(const std::vector<Choice> choices, Choices(options));
  RF_ASSIGN_OR_RETURN(const std::vector<v1::WireDtype> wires, Wires(options));
  RF_ASSIGN_OR_RETURN(const std::vector<uint64_t> sizes, Sizes(options));
  if (options.tune && wires.size() > 1) {
    return Usage(absl::StrCat("--tune --wire ", options.wires, ": want one"));
  }
  if (options.tune && choices.size() > 1) {
    return Usage(absl::StrCat("--tune --algo ", options.algos, ": want one"));
  }
  const auto add = [&](Operation operation, v1::WireDtype wire, uint64_t bytes,
                       const Choice& choice) {
    v1::CollectiveCase* added = request->add_cases();
    added->set_operation(static_cast<v1::CollectiveOperation>(operation));
    SetAlgorithm(choice, added);
    added->set_wire(wire);
    added->set_bytes(bytes);
  };
  for (const Operation operation : operations) {
    std::vector<Choice> existing;
    for (const Choice& choice : choices) {
      if (!choice.has_value() || cluster::Supports(operation, *choice)) {
        existing.push_back(choice);
      } else if (by_name && !options.calibrate) {
        return NoSuchAlgorithm(operation, *choice);
      }
    }
    if (cluster::IsFused(operation)) {
      if (!existing.empty()) {
        RF_RETURN_IF_ERROR(
            AddFused(options, operation, wires, existing, request));
      }
      continue;
    }
    if (operation == Operation::kBarrier) {
      for (const Choice& choice : existing) {
        add(operation, v1::WIRE_DTYPE_F32, 0, choice);
      }
      continue;
    }
    for (const v1::WireDtype wire : wires) {
      for (const uint64_t bytes : sizes) {
        for (const Choice& choice : existing) {
          add(operation, wire, bytes, choice);
        }
      }
    }
  }
  if (request->cases_size() == 0) {
    return Usage(absl::StrCat("--op ", options.ops, " --algo ", options.algos,
                              ": nothing to measure"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::MeasureCollectivesRequest> CollectivesRequest(
    const CollectivesOptions& options) {
  v1::MeasureCollectivesRequest request;
  RF_RETURN_IF_ERROR(AddCases(options, &request));
  const absl::StatusOr<v1::TransportKind> transport =
      cluster::ParseTransport(options.transport);
  if (!transport.ok()) {
    return Usage(absl::StrCat("--", transport.status().message()));
  }
  request.set_transport(*transport);
  if (options.poll == "auto") {
    request.set_poll(v1::POLL_MODE_AUTO);
  } else if (options.poll == "spin") {
    request.set_poll(v1::POLL_MODE_SPIN);
  } else if (options.poll == "block") {
    request.set_poll(v1::POLL_MODE_BLOCK);
  } else {
    return Usage(
        absl::StrCat("--poll ", options.poll, ", want spin, block or auto"));
  }
  cluster::AlgorithmTable table = cluster::AlgorithmTable::Default();
  if (!options.table.empty()) {
    absl::StatusOr<cluster::AlgorithmTable> loaded =
        cluster::AlgorithmTable::Load(options.table);
    if (!loaded.ok()) return Usage("--table", loaded.status());
    table = *std::move(loaded);
  }
  request.set_algorithm_table(table.ToJson());
  if (!options.tiles.empty()) {
    const absl::StatusOr<cluster::TileTable> tiles =
        cluster::TileTable::Load(options.tiles);
    if (!tiles.ok()) return Usage("--tiles", tiles.status());
    request.set_tile_table(tiles->ToJson());
  }
  request.set_threads(static_cast<uint32_t>(options.threads));
  const bool many = options.calibrate || options.tune;
  const double seconds =
      options.seconds > 0 ? options.seconds : (many ? 0.3 : 2.0);
  request.set_iterations(static_cast<uint32_t>(options.iterations));
  request.set_case_ms(static_cast<uint32_t>(std::max(1.0, seconds * 1e3)));
  request.set_pin(!options.no_pin);
  request.set_timeout_ms(kConnectTimeoutMs);
  request.set_collective_timeout_ms(
      static_cast<uint32_t>(options.timeout_s * 1e3));
  return request;
}

}  // namespace ringfleet::coordinator::cli
