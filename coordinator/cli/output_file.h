// SPDX-License-Identifier: Apache-2.0
// A file that a command is told to write: whole under its name, or as it was.
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

// Written under a name of its own beside the one it is to have, until Finish.
// A symbolic link is followed: the file that it leads to is replaced, not the
// link. What exists and is no regular file (a pipe, a device) is written to as
// it is. From one thread.
class OutputFile {
 public:
  // Waits for whoever reads a named pipe. Errors begin with the path and say
  // why: INVALID_ARGUMENT: it cannot be written; RESOURCE_EXHAUSTED: no room,
  // or a limit.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Open(
      const std::string& path);
  // Whether Open would succeed; leaves nothing and disturbs nobody who reads.
  static absl::Status Check(const std::string& path);

  ~OutputFile();  // Leaves nothing, unless finished.
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // What fails shows in Finish.
  void Write(absl::string_view text);
  // To be called once, at last. RESOURCE_EXHAUSTED: it could not be written, as
  // on a full disk.
  absl::Status Finish();

 private:
  OutputFile(std::string path, std::string target)
      : path_(std::move(path)), target_(std::move(target)) {}
  void Close();

  const std::string path_;    // As given, for errors.
  const std::string target_;  // Behind the links.
  std::string unfinished_;    // Of the file beside; empty: there is none.
  std::FILE* file_ = nullptr;
  int error_ = 0;  // The first one's errno.
};

// Open, Write and Finish. The errors are those of both.
absl::Status WriteOutputFile(const std::string& path, absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_OUTPUT_FILE_H_
