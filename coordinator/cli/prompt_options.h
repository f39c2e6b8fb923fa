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

// Options for a prompt. A command line gives one of text, file and ids.
struct PromptOptions {
  std::string text;
  std::string file;
  std::string ids;
  std::string ids_option;  // Name of the option: "--prompt-ids" or "--ids".
  CLI::Option* text_given = nullptr;
  CLI::Option* file_given = nullptr;
  CLI::Option* ids_given = nullptr;
};

// Adds -p/--prompt, -f/--file and `ids_option` to `app`. `options` must outlive
// `app`.
void AddPromptOptions(CLI::App& app, const std::string& ids_option,
                      PromptOptions& options);

// Returns the prompt of the command line.
// Errors: INVALID_ARGUMENT: no prompt or several, an empty prompt, text that is
// not UTF-8, or an id that is not a number. NOT_FOUND: there is no such file.
absl::StatusOr<v1::Prompt> ReadPrompt(const PromptOptions& options);

// Parses ids such as "1,2,3". Error messages name `option`.
absl::StatusOr<std::vector<uint32_t>> ParseIds(absl::string_view option,
                                               absl::string_view text);

// Returns the text of a file. `path` "-" is standard input.
// Errors: NOT_FOUND: there is no such file. INVALID_ARGUMENT: the file cannot
// be read, or is not UTF-8.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Returns bytes of standard input as they come, which somebody may type. Empty:
// the end. Errors: CANCELLED: interrupted. INVALID_ARGUMENT: it cannot be read.
absl::StatusOr<std::string> ReadStdinPart();

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PROMPT_OPTIONS_H_
