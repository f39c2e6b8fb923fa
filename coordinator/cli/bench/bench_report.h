// SPDX-License-Identifier: Apache-2.0
// Results of `bench` in the forms that llama-bench gives its own, with columns
// and keys of ours behind them.
#ifndef RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cli/json_output.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// One test as it was measured.
struct BenchResult {
  v1::BenchProgress::Setup setup;
  v1::BenchTest test;
  int64_t unix_ms = 0;  // Its start.
  std::vector<v1::BenchProgress::Sample> samples;
};

// What the samples come to. Tokens are those of all sequences.
struct BenchFigures {
  std::vector<double> tokens_per_second;  // Of each sample.
  double avg_ns = 0;
  double stddev_ns = 0;  // Of the samples, n - 1; 0 for one.
  double avg_ts = 0;
  double stddev_ts = 0;
  double bytes_per_token = 0;  // Over all workers.
  double read_gbps = 0;        // Of one host: the mean.
  double host_read_gbps = 0;   // Of one host: the mean; 0: not measured.
  std::vector<double> shares;  // Of what the host gives, of each sample that
                               // it was measured for.
  double bandwidth_share = 0;  // The mean of these; 0 without.
};
BenchFigures FiguresOf(const BenchResult& result);

// An object with llama-bench's keys and ours; null where nothing was measured.
Json BenchJson(const BenchResult& result);

// The same without the single samples, as llama-bench prints it: a line of
// names, then lines of quoted values. Each ends with a newline.
std::string BenchCsvHeader();
std::string BenchCsvLine(const BenchResult& result);

// A table in Markdown, to be printed line by line, and what belongs below it.
std::string BenchTableHeader();
std::string BenchTableLine(const BenchResult& result);
std::string BenchTableFooter(const v1::BenchProgress::Setup& setup);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_
