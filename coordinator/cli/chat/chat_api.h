// SPDX-License-Identifier: Apache-2.0
// A chat as a body and a stream of events of OpenAI's API.
#ifndef RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_API_H_
#define RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_API_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/cli/run/generated.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// The parts of "https://host:8443/v1".
struct ApiUrl {
  bool tls = false;
  std::string host;  // Without the brackets of an IPv6 address.
  std::string port;
  std::string authority;  // As the URL has it: the Host of a request.
  std::string target;     // The path of chat completions.
};

// A path that does not end with /v1 gets it.
// Errors: INVALID_ARGUMENT: no http:// or https://, or no host.
absl::StatusOr<ApiUrl> ParseApiUrl(absl::string_view url);

// Returns the body of a request for a stream. Fields that were not set are left
// out, for servers that know few. `model` may be empty.
std::string ChatBodyOf(const v1::GenerateRequest& request,
                       const std::string& model);

// Returns the error of a response that is none with events.
absl::Status ApiErrorOf(int status, absl::string_view body);

// Reads a stream of events. Not thread-safe.
class ChatEvents {
 public:
  // Both arguments must outlive this object. Counts of tokens go to
  // `generated`, and the text, too.
  ChatEvents(const OnPiece& on_piece, Generated* generated)
      : on_piece_(on_piece), generated_(generated) {}

  // Takes the next bytes. Errors: those of `on_piece`; an error that the server
  // tells; UNAVAILABLE: no events of this API.
  absl::Status Add(absl::string_view bytes);
  // Returns whether the stream has told its end.
  bool done() const { return done_; }

 private:
  absl::Status TakeEvent(const std::string& data);

  const OnPiece& on_piece_;
  Generated* const generated_;
  std::string line_;  // Without its end so far.
  std::string data_;  // Data of the event that arrives.
  bool done_ = false;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_API_H_
