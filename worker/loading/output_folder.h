// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_OUTPUT_FOLDER_H_
#define RINGFLEET_WORKER_LOADING_OUTPUT_FOLDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::worker {

// A folder into which a set of files is written. Each file is written under a
// temporary name and renamed when it is complete, so no reader sees a part of a
// file. The folder holds a marker file while the set is incomplete. The marker
// tells the next writer that an interrupted writer left the files. A lock on
// the marker keeps a second writer out. The destructor removes all files of the
// set if Finish was not called, and the folder if Open made it. Files are not
// flushed to the disk.
//
// Error messages start with the path of the folder. A failed system call gives
// the error of cluster::FileError.
class OutputFolder {
 public:
  // Opens the folder `path`, and makes it if it does not exist. `names` are the
  // names of all files of the set. Open removes files of these names if
  // `overwrite` is true, or if an interrupted writer left them. Other files
  // stay.
  //
  // Errors: ALREADY_EXISTS: the folder holds files that no interrupted writer
  // left, and `overwrite` is false. FAILED_PRECONDITION: another process writes
  // to the folder.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Open(
      const std::string& path, std::vector<std::string> names, bool overwrite);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Returns RESOURCE_EXHAUSTED unless the file system has `bytes` bytes free.
  absl::Status CheckSpace(uint64_t bytes) const;

  // Write one file: Begin, then Write for any ranges of bytes from any threads,
  // then Commit. Begin the next file after Commit.
  absl::Status Begin(absl::string_view name);
  absl::Status Write(uint64_t offset, const void* data, size_t size) const;
  absl::Status Commit();

  // Writes a file with the content `text`.
  absl::Status WriteText(absl::string_view name, absl::string_view text);

  // Removes the marker: the set is complete.
  absl::Status Finish();

 private:
  OutputFolder(std::string path, std::vector<std::string> names)
      : path_(std::move(path)), names_(std::move(names)) {}

  absl::Status Claim(bool overwrite);
  // Returns whether every file in the folder is the marker or has one of
  // `names`, perhaps under its temporary name.
  absl::StatusOr<bool> HoldsOnlyOurs() const;
  void RemoveOurs() const;
  std::string PathOf(absl::string_view name) const;
  absl::Status Failure(absl::string_view name, int error) const;

  const std::string path_;
  const std::vector<std::string> names_;
  bool made_ = false;  // Open made the folder.
  int marker_ = -1;    // Open and locked while this object owns the folder.
  bool finished_ = false;
  std::string current_;  // Name of the file between Begin and Commit.
  int file_ = -1;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_OUTPUT_FOLDER_H_
