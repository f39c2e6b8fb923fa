// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/model/dtype_names.h"
#include "cluster/wire/op_descriptor.h"
#include "coordinator/cli/bench/bench_request.h"
#include "coordinator/cli/table.h"

namespace ringfleet::coordinator::cli {
namespace {

// The first columns are as wide as llama-bench's.
const Table& BenchTable() {
  static const Table table({{"model", false, 30},
                            {"size", true, 10},
                            {"params", true, 10},
                            {"backend", false, 10},
                            {"threads", true, 7},
                            {"world", true, 5},
                            {"n_parallel", true, 10},
                            {"test", true, 15},
                            {"t/s", true, 20},
                            {"bytes_per_token", true, 15},
                            {"read_gbps", true, 9},
                            {"host_read_gbps", true, 14},
                            {"bandwidth_share", true, 15}});
  return table;
}

double Mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

double Deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::string DtypeName(v1::Dtype dtype) {
  return std::string(cluster::WeightDtypeName(dtype));
}

std::string WireName(v1::WireDtype wire) {
  const absl::StatusOr<cluster::Wire> known = cluster::WireFromProto(wire);
  return known.ok() ? std::string(cluster::WireText(*known)) : "";
}

std::string CacheName(const v1::BenchProgress::Setup& setup) {
  return std::string(cluster::CacheDtypeName(setup.cache_dtype()));
}

std::string SizeText(uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib >= 1024 ? absl::StrFormat("%.2f GiB", mib / 1024)
                     : absl::StrFormat("%.2f MiB", mib);
}

std::string CountText(uint64_t count) {
  return count >= 1'000'000'000 ? absl::StrFormat("%.2f B", count * 1e-9)
                                : absl::StrFormat("%.2f M", count * 1e-6);
}

// "deepseek_v3 4.33B bf16"
std::string TypeText(const v1::BenchProgress::Setup& setup) {
  return absl::StrCat(
      setup.model_type(), " ",
      absl::StrReplaceAll(CountText(setup.parameters()), {{" ", ""}}), " ",
      DtypeName(setup.dtype()));
}

std::string TimeText(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixMillis(unix_ms),
                          absl::UTCTimeZone());
}

// The unrounded value; null where nothing was measured.
Json OrNull(double value) { return value > 0 ? Json(value) : Json(); }

std::string TextOrDash(const absl::FormatSpec<double>& format, double value) {
  return value > 0 ? absl::StrFormat(format, value) : "-";
}

}  // namespace

BenchFigures FiguresOf(const BenchResult& result) {
  const v1::BenchTest& test = result.test;
  const double tokens =
      (static_cast<double>(test.n_prompt()) + test.n_gen()) * test.n_parallel();
  BenchFigures figures;
  std::vector<double> times;
  double bytes = 0;
  for (const v1::BenchProgress::Sample& sample : result.samples) {
    const double ns = static_cast<double>(sample.time_ns());
    times.push_back(ns);
    figures.tokens_per_second.push_back(ns > 0 ? tokens * 1e9 / ns : 0);
    bytes += static_cast<double>(sample.bytes_read());
  }
  figures.avg_ns = Mean(times);
  figures.stddev_ns = Deviation(times);
  figures.avg_ts = Mean(figures.tokens_per_second);
  figures.stddev_ts = Deviation(figures.tokens_per_second);
  const double time_ns = std::accumulate(times.begin(), times.end(), 0.0);
  if (tokens > 0 && !times.empty()) {
    figures.bytes_per_token =
        bytes / tokens / static_cast<double>(times.size());
  }
  if (time_ns > 0 && result.setup.hosts() > 0) {
    figures.read_gbps = bytes / time_ns / result.setup.hosts();
  }
  // Each with what was measured around it: memory that others use too gives
  // more in one minute than in the next.
  std::vector<double> host_read;
  for (const v1::BenchProgress::Sample& sample : result.samples) {
    const double available = sample.host_read_gbps() * result.setup.hosts() *
                             static_cast<double>(sample.time_ns());
    if (available <= 0) continue;
    host_read.push_back(sample.host_read_gbps());
    figures.shares.push_back(static_cast<double>(sample.bytes_read()) /
                             available);
  }
  figures.host_read_gbps = Mean(host_read);
  figures.bandwidth_share = Mean(figures.shares);
  return figures;
}

Json BenchJson(const BenchResult& result) {
  const v1::BenchProgress::Setup& setup = result.setup;
  const v1::BenchTest& test = result.test;
  const BenchFigures figures = FiguresOf(result);
  Json samples_ns = Json::array();
  for (const v1::BenchProgress::Sample& sample : result.samples) {
    samples_ns.push_back(sample.time_ns());
  }
  return {{"build_commit", setup.build().build_id()},
          {"cpu_info", setup.cpu()},
          {"gpu_info", ""},
          {"backends", "CPU"},
          {"model_filename", setup.model()},
          {"model_type", TypeText(setup)},
          {"model_size", setup.weight_bytes()},
          {"model_n_params", setup.parameters()},
          {"n_batch", setup.prefill_chunk()},
          {"n_ubatch", setup.prefill_chunk()},
          {"n_threads", setup.threads()},
          {"type_k", CacheName(setup)},
          {"type_v", CacheName(setup)},
          {"n_prompt", test.n_prompt()},
          {"n_gen", test.n_gen()},
          {"n_depth", test.n_depth()},
          {"test_time", TimeText(result.unix_ms)},
          {"avg_ns", static_cast<uint64_t>(figures.avg_ns)},
          {"stddev_ns", static_cast<uint64_t>(figures.stddev_ns)},
          {"avg_ts", figures.avg_ts},
          {"stddev_ts", figures.stddev_ts},
          {"samples_ns", samples_ns},
          {"samples_ts", JsonArray(figures.tokens_per_second)},
          {"n_parallel", test.n_parallel()},
          {"world", setup.world()},
          {"hosts", setup.hosts()},
          {"dtype", DtypeName(setup.dtype())},
          {"wire", WireName(setup.wire())},
          {"bytes_per_token", figures.bytes_per_token},
          {"read_gbps", figures.read_gbps},
          {"host_read_gbps", OrNull(figures.host_read_gbps)},
          {"samples_bandwidth_share", JsonArray(figures.shares)},
          {"bandwidth_share", OrNull(figures.bandwidth_share)}};
}

std::string BenchCsvHeader() {
  std::string line;
  const Json document = BenchJson({});
  for (const auto& [key, value] : document.items()) {
    if (!value.is_array()) absl::StrAppend(&line, line.empty() ? "" : ",", key);
  }
  return line + "\n";
}

std::string BenchCsvLine(const BenchResult& result) {
  std::string line;
  const Json document = BenchJson(result);
  for (const auto& [key, value] : document.items()) {
    if (value.is_array()) continue;
    const std::string text = value.is_null()     ? ""
                             : value.is_string() ? value.get<std::string>()
                                                 : value.dump();
    absl::StrAppend(&line, line.empty() ? "" : ",", "\"",
                    absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
  }
  return line + "\n";
}

std::string BenchTableHeader() { return BenchTable().Header(); }

std::string BenchTableLine(const BenchResult& result) {
  const v1::BenchProgress::Setup& setup = result.setup;
  const BenchFigures figures = FiguresOf(result);
  return BenchTable().Row(
      {TypeText(setup), SizeText(setup.weight_bytes()),
       CountText(setup.parameters()), "CPU", absl::StrCat(setup.threads()),
       absl::StrCat(setup.world()), absl::StrCat(result.test.n_parallel()),
       BenchTestName(result.test),
       absl::StrFormat("%.2f ± %.2f", figures.avg_ts, figures.stddev_ts),
       absl::StrFormat("%.0f", figures.bytes_per_token),
       absl::StrFormat("%.2f", figures.read_gbps),
       TextOrDash("%.2f", figures.host_read_gbps),
       TextOrDash("%.3f", figures.bandwidth_share)});
}

std::string BenchTableFooter(const v1::BenchProgress::Setup& setup) {
  return absl::StrCat("\nbuild: ", setup.build().build_id(), " (",
                      setup.build().version(), ")\ncpu: ", setup.cpu(), "\n");
}

}  // namespace ringfleet::coordinator::cli
