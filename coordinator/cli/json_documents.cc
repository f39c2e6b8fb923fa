// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/json_documents.h"

#include <utility>

#include "absl/strings/ascii.h"

namespace ringfleet::coordinator::cli {

void JsonDocuments::Append(absl::string_view bytes) {
  text_.append(bytes.data(), bytes.size());
}

std::optional<std::string> JsonDocuments::Next() {
  if (scanned_ == 0) {
    size_t blank = 0;
    while (blank < text_.size() && absl::ascii_isspace(text_[blank])) ++blank;
    text_.erase(0, blank);
  }
  size_t end = 0;  // 0: not found.
  while (end == 0 && scanned_ < text_.size()) {
    const char c = text_[scanned_];
    const bool first = scanned_ == 0;
    ++scanned_;
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        if (depth_ == 0) end = scanned_;
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      if (--depth_ <= 0) end = scanned_;
    } else if (depth_ == 0 && !first && absl::ascii_isspace(c)) {
      end = scanned_ - 1;  // The end of a number or a word.
    }
  }
  if (end == 0 && (!ended_ || text_.empty())) return std::nullopt;
  if (end == 0) end = text_.size();
  std::string document = text_.substr(0, end);
  text_.erase(0, end);
  scanned_ = 0;
  depth_ = 0;
  in_string_ = escaped_ = false;
  return document;
}

}  // namespace ringfleet::coordinator::cli
