// SPDX-License-Identifier: Apache-2.0
// Splits a sequence of JSON documents, such as `{"a":1} {"a":2}`, while its
// bytes arrive. Finds the ends of documents. Does not check the documents.
#ifndef RINGFLEET_COORDINATOR_CLI_JSON_DOCUMENTS_H_
#define RINGFLEET_COORDINATOR_CLI_JSON_DOCUMENTS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

class JsonDocuments {
 public:
  // Adds bytes that have arrived.
  void Append(absl::string_view bytes);
  // Marks the end of the bytes. Bytes after the last complete document are then
  // a document, too.
  void End() { ended_ = true; }

  // Returns the next document. Returns nothing if the document has not arrived
  // completely.
  std::optional<std::string> Next();
  bool ended() const { return ended_; }

 private:
  std::string text_;    // Bytes from the start of the next document on.
  size_t scanned_ = 0;  // Number of bytes of text_ that were looked at.
  int depth_ = 0;       // Open objects and arrays after the scanned bytes.
  bool in_string_ = false;
  bool escaped_ = false;  // The last scanned byte of a string is a backslash.
  bool ended_ = false;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_JSON_DOCUMENTS_H_
