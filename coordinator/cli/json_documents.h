// SPDX-License-Identifier: Apache-2.0
// Splits a sequence of JSON documents, as in `{"a":1} {"a":2}`, while its bytes
// arrive. Finds only where documents end, and does not judge them.
#ifndef RINGFLEET_COORDINATOR_CLI_JSON_DOCUMENTS_H_
#define RINGFLEET_COORDINATOR_CLI_JSON_DOCUMENTS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

class JsonDocuments {
 public:
  void Append(absl::string_view bytes);
  // Marks the end of the bytes. The rest is a document, complete or not.
  void End() { ended_ = true; }

  // Returns the next document if all of it has arrived.
  std::optional<std::string> Next();
  bool ended() const { return ended_; }

 private:
  std::string text_;    // From the start of the next document.
  size_t scanned_ = 0;  // Bytes of `text_`.
  int depth_ = 0;       // Nesting after `scanned_` bytes.
  bool in_string_ = false;
  bool escaped_ = false;  // The next byte of a string is taken as it is.
  bool ended_ = false;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_JSON_DOCUMENTS_H_
