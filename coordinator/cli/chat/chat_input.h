// SPDX-License-Identifier: Apache-2.0
// Inputs that a user types in a chat. The terminal itself edits lines: this
// needs no library, and a line that waits for its end gives way to a signal.
#ifndef RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_INPUT_H_
#define RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_INPUT_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Joins lines to inputs. A backslash at the end of a line goes on in the next
// one. Lines between """ and """ are one input, which may begin and end within
// a line. Not thread-safe.
class InputLines {
 public:
  // Adds a line without its end. Returns the input that it completes.
  std::optional<std::string> Add(absl::string_view line);
  // Returns the input that the text's end completes.
  std::optional<std::string> Finish();

  // Returns whether a line of an incomplete input is there.
  bool open() const { return open_; }

 private:
  bool open_ = false;
  bool quoted_ = false;
  std::string input_;
};

// Reads standard input. Not thread-safe.
class ChatInput {
 public:
  // `prompt` is called before each line is read. `goes_on`: the line belongs to
  // an input that has begun. Null: nobody sees a prompt.
  explicit ChatInput(std::function<absl::Status(bool goes_on)> prompt)
      : prompt_(std::move(prompt)) {}

  // Returns the next input that is not empty, or nothing at the end.
  // Errors: CANCELLED: interrupted. INVALID_ARGUMENT: not UTF-8, or it cannot
  // be read.
  absl::StatusOr<std::optional<std::string>> Next();

 private:
  // Returns a line without its end, or nothing at the end of the text.
  absl::StatusOr<std::optional<std::string>> ReadLine();

  const std::function<absl::Status(bool goes_on)> prompt_;
  InputLines lines_;
  std::string read_;
  bool ended_ = false;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHAT_CHAT_INPUT_H_
