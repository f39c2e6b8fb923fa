// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/chat_input.h"

#include <utility>

#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr absl::string_view kBlock = "\"\"\"";

}  // namespace

std::optional<std::string> InputLines::Add(absl::string_view line) {
  if (!open_) {
    open_ = true;
    quoted_ = absl::ConsumePrefix(&line, kBlock);
    // The block's text begins in the next line.
    if (quoted_ && line.empty()) return std::nullopt;
  }
  const bool goes_on = quoted_ ? !absl::ConsumeSuffix(&line, kBlock)
                               : absl::ConsumeSuffix(&line, "\\");
  input_.append(line.data(), line.size());
  if (!goes_on) return Finish();
  input_ += '\n';
  return std::nullopt;
}

std::optional<std::string> InputLines::Finish() {
  if (!std::exchange(open_, false)) return std::nullopt;
  // The line break in front of the end of a block is none of its text.
  if (quoted_ && !input_.empty() && input_.back() == '\n') input_.pop_back();
  return std::exchange(input_, "");
}

absl::StatusOr<std::optional<std::string>> ChatInput::ReadLine() {
  if (prompt_ != nullptr) RF_RETURN_IF_ERROR(prompt_(lines_.open()));
  while (true) {
    const size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return line;
    }
    if (ended_) {
      if (read_.empty()) return std::nullopt;
      return std::exchange(read_, "");
    }
    RF_ASSIGN_OR_RETURN(const std::string part, ReadStdinPart());
    ended_ = part.empty();
    read_ += part;
  }
}

absl::StatusOr<std::optional<std::string>> ChatInput::Next() {
  while (true) {
    RF_ASSIGN_OR_RETURN(const std::optional<std::string> line, ReadLine());
    const std::optional<std::string> input =
        line.has_value() ? lines_.Add(*line) : lines_.Finish();
    if (input.has_value() && !input->empty()) {
      RF_RETURN_IF_ERROR(Annotate(CheckUtf8(*input), "stdin"));
      return input;
    }
    if (!line.has_value()) return std::nullopt;
  }
}

}  // namespace ringfleet::coordinator::cli
