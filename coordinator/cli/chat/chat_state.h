// SPDX-License-Identifier: Apache-2.0
// A conversation with its settings, and the commands that change it.
#ifndef RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_STATE_H_
#define RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_STATE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/cli/json_output.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// Names of a request's fields that /set knows. An HTTP API has equal ones.
absl::Span<const char* const> ChatSettings();

// Returns whether a field of the request was set.
bool IsGiven(const v1::GenerateRequest& request,
             const google::protobuf::FieldDescriptor& field);

// Not thread-safe.
class ChatState {
 public:
  // `request` has the settings at the beginning.
  explicit ChatState(v1::GenerateRequest request)
      : request_(std::move(request)) {}

  // Returns the request for the next answer.
  const v1::GenerateRequest& request() const { return request_; }

  // Replaces the system message. Empty: there is none.
  void SetSystem(absl::string_view text);
  // Adds the user's next message, behind files that were read.
  void AddQuestion(absl::string_view text);
  void AddAnswer(const std::string& text, const std::string& reasoning);
  // Takes the last question back.
  void DropQuestion();

  struct Outcome {
    std::string told;  // For the user, with a line break.
    bool quits = false;
  };
  // Runs a line that begins with a slash.
  // Errors: INVALID_ARGUMENT: no such command, or a wrong value. NOT_FOUND: no
  // such file. Those of a file that cannot be written.
  absl::StatusOr<Outcome> Run(absl::string_view line);

 private:
  v1::Conversation& conversation() {
    return *request_.mutable_prompt()->mutable_conversation();
  }
  absl::Status Set(absl::string_view name, absl::string_view value);
  std::string Settings() const;
  absl::Status Save(const std::string& path);

  v1::GenerateRequest request_;
  Json variables_ = Json::object();  // Variables of the template.
  std::string files_;                // Read, and not sent yet.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_STATE_H_
