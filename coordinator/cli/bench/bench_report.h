// SPDX-License-Identifier: Apache-2.0
// Results of `bench` in llama-bench's forms. Columns and keys of ours follow
// llama-bench's.
#ifndef RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cli/json_output.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// The samples of one test.
struct BenchResult {
  v1::BenchProgress::Setup setup;
  v1::BenchTest test;
  int64_t unix_ms = 0;  // Start of the test.
  std::vector<v1::BenchProgress::Sample> samples;
};

// Averages over the samples. Tokens are counted over all sequences.
struct BenchFigures {
  std::vector<double> tokens_per_second;  // One for each sample.
  double avg_ns = 0;
  double stddev_ns = 0;  // With n - 1 samples; 0 for one sample.
  double avg_ts = 0;
  double stddev_ts = 0;
  double bytes_per_token = 0;  // Over all workers.
  double read_gbps = 0;        // Read by one host: the mean over hosts.
  double host_read_gbps = 0;   // Memory bandwidth of a host; 0: not measured.
  std::vector<double> shares;  // Read rate over bandwidth, one for each sample
                               // whose bandwidth was measured.
  double bandwidth_share = 0;  // Mean of `shares`; 0: there are none.
};
BenchFigures FiguresOf(const BenchResult& result);

// Returns an object with llama-bench's keys and ours. A value that was not
// measured is null.
Json BenchJson(const BenchResult& result);

// CSV as llama-bench prints it: a line of names, then lines of quoted values.
// Single samples are left out. Each line ends with a newline.
std::string BenchCsvHeader();
std::string BenchCsvLine(const BenchResult& result);

// A table in Markdown that is printed line by line, and the text below it.
std::string BenchTableHeader();
std::string BenchTableLine(const BenchResult& result);
std::string BenchTableFooter(const v1::BenchProgress::Setup& setup);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_
