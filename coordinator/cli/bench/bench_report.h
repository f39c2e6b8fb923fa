// SPDX-License-Identifier: Apache-2.0
// Results of `bench` in the formats of llama-bench. Further columns and keys
// come after those of llama-bench.
#ifndef RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cli/json_output.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// A test and its samples.
struct BenchResult {
  v1::BenchProgress::Setup setup;
  v1::BenchTest test;
  int64_t unix_ms = 0;  // Start of the test.
  std::vector<v1::BenchProgress::Sample> samples;
};

// Figures of one test. Tokens are counted over all sequences.
struct BenchFigures {
  std::vector<double> tokens_per_second;  // One for each sample.
  double avg_ns = 0;           // Time of a sample: mean over samples.
  double stddev_ns = 0;        // Divides by n - 1. 0: there is one sample.
  double avg_ts = 0;           // Tokens per second: mean over samples.
  double stddev_ts = 0;        // Divides by n - 1. 0: there is one sample.
  double bytes_per_token = 0;  // Bytes read by all workers together.
  double read_gbps = 0;        // Read rate of one host: the mean over hosts.
  double host_read_gbps = 0;   // Memory bandwidth of a host; 0: not measured.
  // Read rate divided by bandwidth, for each sample with measured bandwidth.
  std::vector<double> shares;
  double bandwidth_share = 0;  // Mean of `shares`. 0: there are none.
};
// Returns the figures of a test.
BenchFigures FiguresOf(const BenchResult& result);

// Returns an object with llama-bench's keys and further keys. A value that was
// not measured is null.
Json BenchJson(const BenchResult& result);

// Return lines of CSV in llama-bench's format: a line of names, and a line of
// quoted values for each test. Leave out single samples. Each line ends with a
// newline.
std::string BenchCsvHeader();
std::string BenchCsvLine(const BenchResult& result);

// Return a table in Markdown, line by line, and the text below the table.
std::string BenchTableHeader();
std::string BenchTableLine(const BenchResult& result);
std::string BenchTableFooter(const v1::BenchProgress::Setup& setup);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REPORT_H_
