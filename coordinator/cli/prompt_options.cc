// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/prompt_options.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kInterruptLookMs = 50;

absl::StatusOr<std::string> ReadStdin() {
  std::string text;
  while (true) {
    RF_ASSIGN_OR_RETURN(const std::string part, ReadStdinPart());
    if (part.empty()) return text;
    text += part;
  }
}

absl::StatusOr<std::string> ReadNamedFile(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("file ", path, ": ", std::strerror(errno)));
  }
  std::string text;
  char part[1 << 16];
  size_t size;
  while ((size = std::fread(part, 1, sizeof(part), file)) > 0) {
    text.append(part, size);
  }
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error != 0) {  // A folder can be opened, but not read.
    return absl::InvalidArgumentError(absl::StrCat(
        "file ", path, ": cannot be read: ", std::strerror(error)));
  }
  return text;
}

}  // namespace

void AddPromptOptions(CLI::App& app, const std::string& ids_option,
                      PromptOptions& options) {
  options.ids_option = ids_option;
  options.text_given = app.add_option(
      "-p,--prompt", options.text,
      "Text; gets a BOS in front if the tokenizer is configured so");
  options.file_given = app.add_option("-f,--file", options.file,
                                      "File with the text; - for stdin");
  options.ids_given = app.add_option(ids_option, options.ids,
                                     "Token ids, used as they are: 1,2,3");
}

absl::StatusOr<std::vector<uint32_t>> ParseIds(absl::string_view option,
                                               absl::string_view text) {
  std::vector<uint32_t> ids;
  if (absl::StripAsciiWhitespace(text).empty()) return ids;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    uint32_t id;
    if (!absl::SimpleAtoi(part, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("usage: ", option, ": '", part, "' at place ",
                       ids.size() + 1, ", want a token id"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::string> ReadStdinPart() {
  std::string part(1 << 16, '\0');
  while (true) {
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int ready = poll(&input, 1, kInterruptLookMs);
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t size = read(STDIN_FILENO, part.data(), part.size());
    if (size >= 0) {
      part.resize(static_cast<size_t>(size));
      return part;
    }
    if (errno != EINTR && errno != EAGAIN) {
      return absl::InvalidArgumentError(
          absl::StrCat("file -: cannot be read: ", std::strerror(errno)));
    }
  }
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  absl::StatusOr<std::string> text =
      path == "-" ? ReadStdin() : ReadNamedFile(path);
  if (!text.ok()) return text;
  const absl::Status valid = CheckUtf8(*text);
  if (!valid.ok()) return Annotate(valid, absl::StrCat("file ", path));
  return text;
}

absl::StatusOr<v1::Prompt> ReadPrompt(const PromptOptions& options) {
  const int given = (options.text_given->count() > 0) +
                    (options.file_given->count() > 0) +
                    (options.ids_given->count() > 0);
  if (given != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "usage: ", given == 0 ? "give a prompt" : "give only one prompt",
        ": -p, -f or ", options.ids_option));
  }
  v1::Prompt prompt;
  if (options.ids_given->count() > 0) {
    RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                        ParseIds(options.ids_option, options.ids));
    if (ids.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "usage: ", options.ids_option, " is empty, want at least one id"));
    }
    prompt.mutable_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    return prompt;
  }
  std::string text = options.text;
  if (options.file_given->count() > 0) {
    RF_ASSIGN_OR_RETURN(text, ReadTextFile(options.file));
    // A file is seldom empty on purpose.
    if (text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("usage: -f ", options.file,
                       ": the prompt is empty, want at least one character"));
    }
  }
  RF_RETURN_IF_ERROR(CheckUtf8(text));
  prompt.set_text(text);
  return prompt;
}

}  // namespace ringfleet::coordinator::cli
