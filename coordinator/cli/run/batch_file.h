// SPDX-License-Identifier: Apache-2.0
// `ringfleet submit FILE.jsonl`: a file of prompts as a batch, and its results.
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_BATCH_FILE_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_BATCH_FILE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/run/job_options.h"
#include "coordinator/cli/session.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

struct BatchOptions {
  // Options of the verb that have no meaning beside the file,
  std::vector<const CLI::Option*> others;
  // and those that have none without it.
  std::vector<const CLI::Option*> own;
  const CLI::Option* priority = nullptr;
  std::string file;  // Empty: no batch is submitted. "-": stdin.
  std::string name;
  std::string key;
  std::string endpoint;
  bool follow = false;
  std::string output;  // A file for the results. Empty: none. "-": stdout.
};

// The check of a file ends behind so many errors.
inline constexpr int kMostCheckErrors = 100;

// Adds the file and the options that only batches have. Options that `app` has
// before, but for those of `shared`, may not be given beside the file. `shared`
// has --priority.
void AddBatchOptions(CLI::App& app, const std::vector<std::string>& shared,
                     BatchOptions& options);

// Checks that the options that were given have a meaning together.
// Errors: INVALID_ARGUMENT names the option that has none.
absl::Status CheckBatchOptions(const BatchOptions& options);

// Submits the file, and prints {"id","state","total"}. With `follow` or
// `output`, waits for the results, and prints or writes them instead; with a
// file and --json does both, each in its place.
//
// Errors: INVALID_ARGUMENT: lines have errors, which are on stderr.
absl::Status RunBatchFile(SessionOptions session, const BatchOptions& options,
                          const JobSettings& job, Invocation& invocation);

// Which results of a batch are wanted.
struct ResultOptions {
  std::string id;
  bool unordered = false;  // As they are committed, else as in the input.
  bool completed = true;
  bool failed = true;
  bool follow = false;  // Until the batch has ended.
};

// Reads results line by line. A connection that breaks is made again, and goes
// on behind the last line. Shows the batch's progress while it follows.
//
// Errors: those of Coordinator.StreamResults, and of `take`.
absl::Status ReadResults(
    Session& session, const ResultOptions& options,
    const std::function<absl::Status(absl::string_view line)>& take);

// Returns "in_progress, 12 of 400 lines, 2 failed, 3.1 lines/s, 2 min left".
// A batch that waits has no rate.
std::string BatchSummary(const v1::JobInfo& job);

// Returns what lists say of a batch: "night: in_progress, 12 of 400 lines", or
// "night: 36 of 400 lines completed, the batch has expired".
std::string BatchRemark(const v1::JobInfo& job);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_BATCH_FILE_H_
