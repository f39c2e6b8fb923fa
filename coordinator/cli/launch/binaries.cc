// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/binaries.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator::cli {

std::string BinaryPath(absl::string_view name) {
  const char* folder = std::getenv("RINGFLEET_BIN_DIR");
  if (folder != nullptr && *folder != '\0') {
    return absl::StrCat(folder, "/", name);
  }
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  return absl::StrCat(self.parent_path().string(), "/", name);
}

}  // namespace ringfleet::coordinator::cli
