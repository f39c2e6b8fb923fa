// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REQUEST_H_
#define RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// The tests of a command line. Each list may be spread over several options, in
// the form of ParseNumbers. An empty list means llama-bench's default, which is
// the value in brackets.
struct BenchOptions {
  std::vector<std::string> prompts;    // [512]
  std::vector<std::string> generated;  // [128]
  std::vector<std::string> pairs;      // "512,128": one after the other.
  std::vector<std::string> depths;     // [0]
  std::vector<std::string> parallels;  // [1]
  std::vector<std::string> threads;    // [0]: the workers' own.
  int repetitions = 5;
  double delay_s = 0;
  bool no_warmup = false;
  bool no_memory_test = false;
};

// Parses "1,8,32", "1-4" (1,2,3,4), "0-1024+512" (0,512,1024) and "1-8*2"
// (1,2,4,8).
//
// Errors: INVALID_ARGUMENT: "usage: OPTION ..." names the wrong value.
absl::StatusOr<std::vector<uint32_t>> ParseNumbers(
    absl::string_view option, const std::vector<std::string>& texts);

// Returns every test of the options in llama-bench's order: by parallels, then
// depths, then prompts, generated tokens, pairs. Zero tokens are no test.
//
// Errors: INVALID_ARGUMENT: "usage: ..."; there is nothing to test.
absl::StatusOr<v1::BenchRequest> MakeBenchRequest(const BenchOptions& options);

// Room that a fleet needs for all tests.
struct BenchNeeds {
  uint32_t slots = 1;
  uint64_t context = 1;
};
BenchNeeds NeedsOf(const v1::BenchRequest& request);

// Returns llama-bench's name: "pp512", "tg128", "pp512+tg128", "tg128 @ d2048".
std::string BenchTestName(const v1::BenchTest& test);

// Spells llama.cpp's long options of one dash with two dashes: CLI11 reads -np
// as -n p. `arguments` are those of a verb, without the program's name.
std::vector<std::string> WithLongOptions(std::vector<std::string> arguments);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REQUEST_H_
