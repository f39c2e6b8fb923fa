// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/value_checks.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/utf8.h"

namespace ringfleet::coordinator::cli {

CLI::Validator Utf8Path() {
  return CLI::Validator(
      [](std::string& path) -> std::string {
        const absl::Status status = CheckUtf8(path);
        if (status.ok()) return "";
        return absl::StrCat("path '", absl::CHexEscape(path),
                            "': ", status.message());
      },
      "");
}

}  // namespace ringfleet::coordinator::cli
