// SPDX-License-Identifier: Apache-2.0
// The lines of a batch's input, as JSON Lines:
//
//   {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
//    "body": {"messages": [...], "max_tokens": 100}}
//
// A batch that names its endpoint takes lines of this form alone, with the
// model in the body. Where the batch names no endpoint, the model may be
// absent, and a line may also be the body itself: {"prompt": "..."} or
// {"messages": [...]}, with or without a custom_id.
#ifndef RINGFLEET_COORDINATOR_BATCH_BATCH_LINES_H_
#define RINGFLEET_COORDINATOR_BATCH_BATCH_LINES_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/http/generation_request.h"
#include "coordinator/store/batch_table.h"

namespace ringfleet::coordinator {

inline constexpr char kChatEndpoint[] = "/v1/chat/completions";
inline constexpr char kCompletionEndpoint[] = "/v1/completions";

inline constexpr size_t kMostLines = 50'000;
inline constexpr size_t kMostLineBytes = size_t{16} << 20;
inline constexpr size_t kMostCustomIdBytes = 512;
// A validation ends behind so many errors.
inline constexpr size_t kMostLineErrors = 100;

// An error of a line, or of the file. Codes are those of OpenAI's batches.
struct LineError {
  std::string code;
  std::string message;  // Names the field.
  std::string param;    // Empty: none.
  int64_t number = 0;   // The line's, from 1; 0: none.
};

// A list of {code, message, param, line}.
std::string LineErrorsJson(const std::vector<LineError>& errors);

struct BatchLine {
  std::string custom_id;
  bool chat = false;
  bool wrapped = true;  // The line has the body as a field, else is the body.
  nlohmann::ordered_json body;
};

// Reads the line of a number. `endpoint`: the batch's; empty: any.
std::optional<LineError> ReadBatchLine(absl::string_view text, int64_t number,
                                       absl::string_view endpoint,
                                       BatchLine* out);

struct ScannedLines {
  std::vector<LineRecord> lines;
  std::vector<LineError> errors;  // Not empty: no line may run.
};

// Reads and checks all lines of a file; empty ones do not count. Lines whose
// prompts begin alike get neighbouring places, so that they reuse each other's
// rows. A line that names no seed gets a random one.
//
// Errors: those of FileError.
absl::StatusOr<ScannedLines> ScanLines(const std::string& path,
                                       absl::string_view endpoint,
                                       const GenerationContext& context);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_BATCH_LINES_H_
