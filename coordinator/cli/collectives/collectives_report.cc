// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/collectives_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/model/dtype_names.h"
#include "cluster/wire/op_descriptor.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::Algorithm;
using cluster::Operation;
using cluster::Wire;

// Protocol numbers are those of a frame's descriptor (types.proto); a worker of
// another version may send one that has no name here.
std::string OperationName(const v1::CollectiveCase& measured) {
  return std::string(
      cluster::OperationText(static_cast<Operation>(measured.operation())));
}

std::string AlgorithmName(const v1::CollectiveCase& measured) {
  return std::string(
      cluster::AlgorithmText(static_cast<Algorithm>(measured.algorithm())));
}

std::string WireName(const v1::CollectiveCase& measured) {
  const absl::StatusOr<Wire> wire = cluster::WireFromProto(measured.wire());
  return wire.ok() ? std::string(cluster::WireText(*wire)) : "";
}

std::string HashText(const v1::CollectiveFigures& figures) {
  return absl::StrFormat("%016x", figures.hash());
}

}  // namespace

Bandwidths BandwidthsOf(const v1::CollectiveFigures& figures, int world) {
  const v1::CollectiveCase& measured = figures.measured();
  if (measured.bytes() == 0 || figures.p50_us() <= 0) return {};
  const double algbw =
      static_cast<double>(measured.bytes()) / figures.p50_us() * 1e-3;
  const double share = static_cast<double>(world - 1) / world;
  switch (measured.operation()) {
    case v1::COLLECTIVE_OPERATION_ALL_REDUCE:
      return {algbw, algbw * 2 * share};
    case v1::COLLECTIVE_OPERATION_ALL_GATHER:
    case v1::COLLECTIVE_OPERATION_REDUCE_SCATTER:
    case v1::COLLECTIVE_OPERATION_ALL_TO_ALL:
    case v1::COLLECTIVE_OPERATION_ALL_GATHER_MATMUL:
    case v1::COLLECTIVE_OPERATION_MATMUL_REDUCE_SCATTER:
      return {algbw, algbw * share};
    default:
      return {algbw, algbw};
  }
}

double OverlapOf(const v1::CollectiveFigures& figures) {
  if (figures.communicate_us() <= 0) return 0;
  return 1 -
         (figures.p50_us() - figures.compute_us()) / figures.communicate_us();
}

Json CollectivesJson(const std::vector<v1::CollectiveFigures>& all, int world) {
  Json rows = Json::array();
  for (const v1::CollectiveFigures& figures : all) {
    const v1::CollectiveCase& measured = figures.measured();
    const Bandwidths bandwidths = BandwidthsOf(figures, world);
    rows.push_back({{"op", OperationName(measured)},
                    {"algo", AlgorithmName(measured)},
                    {"wire", WireName(measured)},
                    {"transport", figures.transport()},
                    {"world", world},
                    {"bytes", measured.bytes()},
                    {"p50_us", figures.p50_us()},
                    {"p99_us", figures.p99_us()},
                    {"algbw_gbps", bandwidths.algbw_gbps},
                    {"busbw_gbps", bandwidths.busbw_gbps},
                    {"cpu_s_per_gb", figures.cpu_seconds_per_gb()},
                    {"wrong", figures.wrong()},
                    {"hash", HashText(figures)},
                    {"wire_bytes", figures.wire_bytes()},
                    {"iterations", figures.iterations()}});
    if (!measured.has_product()) continue;
    const v1::FusedProduct& product = measured.product();
    rows.back().update(
        {{"m", product.rows()},
         {"n", product.outputs()},
         {"k", product.inputs()},
         {"dtype", std::string(cluster::WeightDtypeName(product.dtype()))},
         {"unfused_us", figures.unfused_us()},
         {"compute_us", figures.compute_us()},
         {"comm_us", figures.communicate_us()},
         {"overlap", OverlapOf(figures)},
         {"tile_columns", product.tiles().tile_columns()},
         {"segment_bytes", product.tiles().segment_bytes()},
         {"piece_rows", product.tiles().piece_rows()}});
  }
  return rows;
}

std::string CollectivesTable(const std::vector<v1::CollectiveFigures>& all,
                             int world) {
  std::string table =
      "| op | algo | wire | transport | world | bytes | p50 us | p99 us | "
      "algbw GB/s | busbw GB/s | CPU s/GB | wrong | hash |\n"
      "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n";
  for (const v1::CollectiveFigures& figures : all) {
    const v1::CollectiveCase& measured = figures.measured();
    const Bandwidths bandwidths = BandwidthsOf(figures, world);
    absl::StrAppendFormat(
        &table,
        "| %s | %s | %s | %s | %d | %d | %.1f | %.1f | %.3f | %.3f | %.3f | "
        "%d | %s |\n",
        OperationName(measured), AlgorithmName(measured), WireName(measured),
        figures.transport(), world, measured.bytes(), figures.p50_us(),
        figures.p99_us(), bandwidths.algbw_gbps, bandwidths.busbw_gbps,
        figures.cpu_seconds_per_gb(), figures.wrong(), HashText(figures));
  }
  bool first = true;
  for (const v1::CollectiveFigures& figures : all) {
    const v1::CollectiveCase& measured = figures.measured();
    if (!measured.has_product()) continue;
    if (first) {
      absl::StrAppend(
          &table,
          "\n| op | algo | m | n | k | dtype | wire | world | "
          "fused ms | unfused ms | compute ms | comm ms | overlap "
          "|\n"
          "|---|---|---:|---:|---:|---|---|---:|---:|---:|---:|---:|"
          "---:|\n");
      first = false;
    }
    const v1::FusedProduct& product = measured.product();
    absl::StrAppendFormat(
        &table,
        "| %s | %s | %d | %d | %d | %s | %s | %d | %.2f | %.2f | %.2f | %.2f | "
        "%.1f %% |\n",
        OperationName(measured), AlgorithmName(measured), product.rows(),
        product.outputs(), product.inputs(),
        std::string(cluster::WeightDtypeName(product.dtype())),
        WireName(measured), world, figures.p50_us() * 1e-3,
        figures.unfused_us() * 1e-3, figures.compute_us() * 1e-3,
        figures.communicate_us() * 1e-3, OverlapOf(figures) * 100);
  }
  return table;
}

}  // namespace ringfleet::coordinator::cli
