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

// A folder that a set of files is being written into. Each file is written
// under another name and renamed when it is complete, so that no reader meets a
// part of a file. While the set is incomplete the folder holds a marker. By the
// marker, the next writer recognises the files of an interrupted writer. A lock
// on the marker keeps a second writer out. Without a call of Finish everything
// written is removed, and the folder, too, if it was made. Data are not flushed
// to the disk.
//
// Messages start with the folder. Errors of the system are those of
// cluster::FileError.
class OutputFolder {
 public:
  // Makes the folder if it is not there. `names` are all files that will be
  // written. Files of these names are removed if an interrupted writer left
  // them, or with `overwrite`; other files stay.
  //
  // Errors: ALREADY_EXISTS: the folder holds anything else.
  // FAILED_PRECONDITION: another process is writing there.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Open(
      const std::string& path, std::vector<std::string> names, bool overwrite);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // RESOURCE_EXHAUSTED unless the file system has this much space.
  absl::Status CheckSpace(uint64_t bytes) const;

  // One file at a time: Begin, any number of Writes from any threads at any
  // places, Commit.
  absl::Status Begin(absl::string_view name);
  absl::Status Write(uint64_t offset, const void* data, size_t size) const;
  absl::Status Commit();

  // A file of a text.
  absl::Status WriteText(absl::string_view name, absl::string_view text);

  // The set is complete.
  absl::Status Finish();

 private:
  OutputFolder(std::string path, std::vector<std::string> names)
      : path_(std::move(path)), names_(std::move(names)) {}

  absl::Status Claim(bool overwrite);
  // True if every file in the folder is known by its name.
  absl::StatusOr<bool> HoldsOnlyOurs() const;
  void RemoveOurs() const;
  std::string PathOf(absl::string_view name) const;
  absl::Status Failure(absl::string_view name, int error) const;

  const std::string path_;
  const std::vector<std::string> names_;
  bool made_ = false;  // The folder, by Open.
  int marker_ = -1;    // Open and locked while this object owns the folder.
  bool finished_ = false;
  std::string current_;  // Name of the file between Begin and Commit.
  int file_ = -1;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_OUTPUT_FOLDER_H_
