// SPDX-License-Identifier: Apache-2.0
// A text in which each byte knows its origin. A prompt is one.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_MARKED_TEXT_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_MARKED_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// kMessage: from a request, whose text must not become a control token.
// kTemplate: all else.
enum class Origin { kTemplate, kMessage };

// Returns kMessage if one of the two is kMessage.
inline Origin Either(Origin a, Origin b) {
  return a == Origin::kMessage ? a : b;
}

class MarkedText {
 public:
  // Bytes of one origin. A run begins where the run before it ends.
  struct Run {
    size_t end;
    Origin origin;
  };

  MarkedText() = default;
  MarkedText(absl::string_view bytes, Origin origin) { Append(bytes, origin); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Neighbours differ in their origins. No run is empty.
  const std::vector<Run>& runs() const { return runs_; }
  // Returns kMessage if one byte is of a message.
  Origin origin() const;
  // Requires at < size().
  Origin OriginAt(size_t at) const;
  // Returns whether bytes [begin, end) all have `origin`. Requires
  // begin < end <= size().
  bool IsAllOf(Origin origin, size_t begin, size_t end) const;

  void Append(absl::string_view bytes, Origin origin);
  void Append(const MarkedText& text) { Append(text, 0, text.size()); }
  // Appends bytes [begin, begin + size) of `text`, which is another text.
  void Append(const MarkedText& text, size_t begin, size_t size);

  // Returns bytes [begin, begin + size), or fewer at the end of the text.
  MarkedText Part(size_t begin, size_t size = std::string::npos) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_MARKED_TEXT_H_
