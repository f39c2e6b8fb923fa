// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_PROMPT_OPTIONS_H_
#define RINGFLEET_COORDINATOR_CLI_PROMPT_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// A prompt as text, as a file or as ids: exactly one is given.
struct PromptOptions {
  std::string text;
  std::string file;
  std::string ids;
  std::string ids_option;  // "--prompt-ids" or "--ids".
  CLI::Option* text_given = nullptr;
  CLI::Option* file_given = nullptr;
  CLI::Option* ids_given = nullptr;
};

void AddPromptOptions(CLI::App& app, const std::string& ids_option,
                      PromptOptions& options);

// Returns the one prompt of the options. Errors: INVALID_ARGUMENT: no prompt or
// several, an empty prompt, text that is not UTF-8, or an id that is not a
// number, which the message names. NOT_FOUND: no such file.
absl::StatusOr<v1::Prompt> ReadPrompt(const PromptOptions& options);

// Parses "1,2,3". `option` appears in errors.
absl::StatusOr<std::vector<uint32_t>> ParseIds(absl::string_view option,
                                               absl::string_view text);

// Reads a whole file; "-" is standard input. Errors: INVALID_ARGUMENT: the file
// cannot be read, or is not UTF-8. NOT_FOUND.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PROMPT_OPTIONS_H_
