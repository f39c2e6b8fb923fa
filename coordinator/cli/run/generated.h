// SPDX-License-Identifier: Apache-2.0
// The result of a generating job, and how verbs show it.
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_GENERATED_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_GENERATED_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/chat/reasoning.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator::cli {

// The sum of a stream of events.
struct Generated {
  v1::GenerateEvent::Accepted accepted;
  Json ids = Json::array();
  Json logprobs = Json::array();
  std::vector<v1::TopLogprobs> top;  // By token, if asked for.
  std::string text;
  std::string reasoning;  // Answers to conversations have one.
  v1::GenerateEvent::Finished finished;
};

// Receives the text as it comes. An error of it ends the call. `last`: no more
// follows; the piece may be empty.
using OnPiece =
    std::function<absl::Status(const AnswerPiece& piece, bool last)>;

// Prints the text of an answer, with a line break at the end.
absl::Status PrintPiece(const AnswerPiece& piece, bool last);

// Reads a stream of events to its end. Prints on stderr what the job waits for.
// `on_accepted` returns false to leave the stream after the first event. Both
// functions may be null.
//
// Errors: the job's; those of `on_piece`; UNAVAILABLE: the stream ended early.
absl::StatusOr<Generated> ReadEvents(
    InterruptibleCall& call, grpc::ClientReader<v1::GenerateEvent>& reader,
    const OnPiece& on_piece,
    const std::function<bool()>& on_accepted = nullptr);

// The contract's document of `generate`, with the job's id in front if asked.
Json ToJson(const Generated& generated, bool with_id);

// Prints a line of timings on stderr. `is_loaded_for_this` says whether the
// fleet was started for this job, so that its loading counts.
void PrintSummary(const Generated& generated, bool is_loaded_for_this);

// Says on stderr what a job waits for; empty: that it goes on.
void PrintWaiting(const std::string& reason);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_GENERATED_H_
