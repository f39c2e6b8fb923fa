// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_FILE_READER_H_
#define RINGFLEET_CLUSTER_PROCESS_FILE_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ringfleet::cluster {

// A regular file, open for reading by position. Reads use pread, not a mapping,
// so that a file that shrinks gives an error instead of SIGBUS. Movable. Read
// and CheckUnchanged may be called from any thread.
class FileReader {
 public:
  // Errors name the path:
  //   NOT_FOUND: no such file.
  //   INVALID_ARGUMENT: not a regular file.
  //   Others: those of FileError.
  static absl::StatusOr<FileReader> Open(const std::string& path);

  FileReader() = default;
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;

  const std::string& path() const { return path_; }
  uint64_t size() const { return identity_.size; }

  // DATA_LOSS: the file ends before offset + size, or an I/O error.
  absl::Status Read(uint64_t offset, size_t size, void* destination) const;

  // Tells files, and the states of one file, apart.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    uint64_t size = 0;
    int64_t modified_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  const Identity& identity() const { return identity_; }

  // DATA_LOSS: size or modification time differ from those at Open.
  absl::Status CheckUnchanged() const;

 private:
  std::string path_;
  int fd_ = -1;
  Identity identity_;
};

// Reads a whole file. Errors: INVALID_ARGUMENT: the file is longer than
// `max_bytes`. Others: those of FileReader.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          uint64_t max_bytes);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_FILE_READER_H_
