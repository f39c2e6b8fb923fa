// SPDX-License-Identifier: Apache-2.0
// A file that a command writes. The file gets the complete result, or stays
// unchanged.
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

// A file that has a temporary name in its folder until Finish gives it its
// name. If the path is a symbolic link, the link's target is replaced. Pipes
// and devices are written directly. Use from one thread.
class OutputFile {
 public:
  // Opens the file. Waits for the reader of a named pipe.
  // Errors begin with the path and give a reason. INVALID_ARGUMENT: the file
  // cannot be written. RESOURCE_EXHAUSTED: no space, or a limit of the process.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Open(
      const std::string& path);
  // Checks that Open would succeed. Leaves no file and does not open pipes.
  // Errors: those of Open.
  static absl::Status Check(const std::string& path);

  ~OutputFile();  // Removes the temporary file unless Finish succeeded.
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Adds `text`. Does nothing after a Write that failed.
  void Write(absl::string_view text);
  // Returns the error of the first Write that failed, as Finish does.
  absl::Status status() const;
  // Completes the file and renames it to its name. Call once.
  // Errors: RESOURCE_EXHAUSTED: the file could not be written, for example to a
  // full disk.
  absl::Status Finish();

 private:
  OutputFile(std::string path, std::string target)
      : path_(std::move(path)), target_(std::move(target)) {}
  void Close();

  const std::string path_;    // The caller's path, for errors.
  const std::string target_;  // The path after symbolic links.
  std::string unfinished_;    // Path of the temporary file. Empty: none.
  std::FILE* file_ = nullptr;
  int error_ = 0;  // errno of the first failure. 0: none.
};

// Writes `text` to the file `path`. Errors: those of OutputFile::Open and
// OutputFile::Finish.
absl::Status WriteOutputFile(const std::string& path, absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_OUTPUT_FILE_H_
