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

// Options of `bench`. Each list has the form of ParseNumbers, and one element
// for each time that its option was given. An empty list means the default in
// brackets, which is llama-bench's.
struct BenchOptions {
  std::vector<std::string> prompts;    // Prompt tokens [512].
  std::vector<std::string> generated;  // Generated tokens [128].
  std::vector<std::string> pairs;      // "512,128": a prompt, then generation.
  std::vector<std::string> depths;     // Cached tokens before the test [0].
  std::vector<std::string> parallels;  // Number of sequences [1].
  std::vector<std::string> threads;    // [0]: the number of a running worker.
  int repetitions = 5;
  double delay_s = 0;  // Between two tests.
  bool no_warmup = false;
  bool fill = false;
  bool no_memory_test = false;
};

// Parses lists of numbers such as "1,8,32", "1-4" (1,2,3,4), "0-1024+512"
// (0,512,1024) and "1-8*2" (1,2,4,8).
//
// Errors: INVALID_ARGUMENT: a value is wrong. The message is "usage: OPTION
// ..." and names the value.
absl::StatusOr<std::vector<uint32_t>> ParseNumbers(
    absl::string_view option, const std::vector<std::string>& texts);

// Returns all tests of the options in llama-bench's order: sorted by number of
// sequences, then by depth, then prompts before generation before pairs. Leaves
// out tests of zero tokens.
//
// Errors: those of ParseNumbers. INVALID_ARGUMENT: there is no test.
absl::StatusOr<v1::BenchRequest> MakeBenchRequest(const BenchOptions& options);

// Sizes that a fleet needs for all tests.
struct BenchNeeds {
  uint32_t slots = 1;
  uint64_t context = 1;  // Positions in each slot.
};

// Returns the largest needs of all tests.
BenchNeeds NeedsOf(const v1::BenchRequest& request);

// Returns llama-bench's name for a test, such as "pp512", "tg128",
// "pp512+tg128" or "tg128 @ d2048".
std::string BenchTestName(const v1::BenchTest& test);

// Replaces long options with one dash, which llama.cpp has, by options with two
// dashes. CLI11 would read -np as -n p. `arguments` are the arguments of a
// verb, without the program's name.
std::vector<std::string> WithLongOptions(std::vector<std::string> arguments);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_BENCH_BENCH_REQUEST_H_
