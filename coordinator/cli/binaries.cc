// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/binaries.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator::cli {
namespace {

std::filesystem::path FolderOfThisProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

// The value of an environment variable that is set and not empty, or null.
const char* NonEmpty(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

std::string BinaryFolder() {
  const char* folder = NonEmpty("RINGFLEET_BIN_DIR");
  return folder != nullptr ? folder : FolderOfThisProgram().string();
}

std::string BinaryPath(absl::string_view name) {
  return absl::StrCat(BinaryFolder(), "/", name);
}

absl::StatusOr<std::string> LaunchScriptPath() {
  const char* folder = NonEmpty("RINGFLEET_LAUNCH_DIR");
  const std::string path = folder != nullptr
                               ? absl::StrCat(folder, "/fleet.sh")
                               : (FolderOfThisProgram().parent_path() /
                                  "share/ringfleet/launch/ssh/fleet.sh")
                                     .string();
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", std::strerror(errno),
                     ", want the launch script; RINGFLEET_LAUNCH_DIR names "
                     "its folder"));
  }
  return path;
}

}  // namespace ringfleet::coordinator::cli
