// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/value_checks.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::cli {
namespace {

std::string FiniteProblem(const std::string& text) {
  // Reads the number as CLI11 does. CLI11 itself refuses text that is no
  // number.
  return std::isfinite(std::strtod(text.c_str(), nullptr))
             ? ""
             : absl::StrCat(text, ", want a finite number");
}

std::string UnsignedProblem(const std::string& text) {
  return absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "-")
             ? absl::StrCat(text, ", want 0 or more")
             : "";
}

// Checks that a text is UTF-8. `kind` stands before it in the error.
CLI::Validator Utf8(const std::string& kind) {
  return CLI::Validator(
      [kind](std::string& text) -> std::string {
        const absl::Status status = CheckUtf8(text);
        if (status.ok()) return "";
        return absl::StrCat(kind, "'", absl::CHexEscape(text),
                            "': ", status.message());
      },
      "");
}

}  // namespace

CLI::Validator Utf8Path() { return Utf8("path "); }

CLI::Validator Utf8Text() { return Utf8(""); }

CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        return text.empty() ? "'', want one or more" : "";
      },
      "");
}

void CheckNumbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (absl::StartsWith(type, "FLOAT")) option->check(FiniteProblem);
    if (absl::StartsWith(type, "UINT")) option->check(UnsignedProblem);
  }
  // Groups of options, too.
  for (CLI::App* part : app.get_subcommands([](CLI::App*) { return true; })) {
    CheckNumbers(*part);
  }
}

}  // namespace ringfleet::coordinator::cli
