// SPDX-License-Identifier: Apache-2.0
// A file that a command writes: the whole result appears under its name, or the
// file stays as it was.
#ifndef RINGFLEET_COORDINATOR_CLI_OUTPUT_FILE_H_
#define RINGFLEET_COORDINATOR_CLI_OUTPUT_FILE_H_

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// The file has a temporary name beside its own until Finish. A symbolic link is
// followed, and the file behind it is replaced. A pipe or a device is written
// to directly. Use from one thread.
class OutputFile {
 public:
  // Waits for the reader of a named pipe. Errors begin with the path and give a
  // reason. INVALID_ARGUMENT: the file cannot be written. RESOURCE_EXHAUSTED:
  // no room, or a limit.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Open(
      const std::string& path);
  // Checks that Open would succeed. Leaves nothing and disturbs no reader.
  static absl::Status Check(const std::string& path);

  ~OutputFile();  // Leaves no file unless finished.
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // A failure shows in Finish.
  void Write(absl::string_view text);
  // Call once, at the end. RESOURCE_EXHAUSTED: the file could not be written,
  // as on a full disk.
  absl::Status Finish();

 private:
  OutputFile(std::string path, std::string target)
      : path_(std::move(path)), target_(std::move(target)) {}
  void Close();

  const std::string path_;    // As given, for errors.
  const std::string target_;  // Behind the links.
  std::string unfinished_;    // Path of the file beside; empty: none.
  std::FILE* file_ = nullptr;
  int error_ = 0;  // The first one's errno.
};

// Opens, writes and finishes the file. Errors: those of Open and Finish.
absl::Status WriteOutputFile(const std::string& path, absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_OUTPUT_FILE_H_
