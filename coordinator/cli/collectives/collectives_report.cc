// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/collectives_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/model/dtype_names.h"
#include "cluster/wire/op_descriptor.h"
#include "coordinator/cli/table.h"

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
  Table exchanges({{"op"},
                   {"algo"},
                   {"wire"},
                   {"transport"},
                   {"world", true},
                   {"bytes", true},
                   {"p50 us", true},
                   {"p99 us", true},
                   {"algbw GB/s", true},
                   {"busbw GB/s", true},
                   {"CPU s/GB", true},
                   {"wrong", true},
                   {"hash"}});
  Table products({{"op"},
                  {"algo"},
                  {"m", true},
                  {"n", true},
                  {"k", true},
                  {"dtype"},
                  {"wire"},
                  {"world", true},
                  {"fused ms", true},
                  {"unfused ms", true},
                  {"compute ms", true},
                  {"comm ms", true},
                  {"overlap", true}});
  for (const v1::CollectiveFigures& figures : all) {
    const v1::CollectiveCase& measured = figures.measured();
    const Bandwidths bandwidths = BandwidthsOf(figures, world);
    exchanges.Add({OperationName(measured), AlgorithmName(measured),
                   WireName(measured), figures.transport(), absl::StrCat(world),
                   absl::StrCat(measured.bytes()),
                   absl::StrFormat("%.1f", figures.p50_us()),
                   absl::StrFormat("%.1f", figures.p99_us()),
                   absl::StrFormat("%.3f", bandwidths.algbw_gbps),
                   absl::StrFormat("%.3f", bandwidths.busbw_gbps),
                   absl::StrFormat("%.3f", figures.cpu_seconds_per_gb()),
                   absl::StrCat(figures.wrong()), HashText(figures)});
    if (!measured.has_product()) continue;
    const v1::FusedProduct& product = measured.product();
    products.Add({OperationName(measured), AlgorithmName(measured),
                  absl::StrCat(product.rows()), absl::StrCat(product.outputs()),
                  absl::StrCat(product.inputs()),
                  std::string(cluster::WeightDtypeName(product.dtype())),
                  WireName(measured), absl::StrCat(world),
                  absl::StrFormat("%.2f", figures.p50_us() * 1e-3),
                  absl::StrFormat("%.2f", figures.unfused_us() * 1e-3),
                  absl::StrFormat("%.2f", figures.compute_us() * 1e-3),
                  absl::StrFormat("%.2f", figures.communicate_us() * 1e-3),
                  absl::StrFormat("%.1f %%", OverlapOf(figures) * 100)});
  }
  return absl::StrCat(exchanges.text(), products.empty() ? "" : "\n",
                      products.empty() ? "" : products.text());
}

}  // namespace ringfleet::coordinator::cli
