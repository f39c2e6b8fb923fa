// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_CHECKPOINT_SOURCE_H_
#define RINGFLEET_CLUSTER_MODEL_CHECKPOINT_SOURCE_H_

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

// The contents of a checkpoint as its headers give them: files, configuration
// and tensors.
struct CheckpointContents {
  struct File {
    std::string name;
    uint64_t size = 0;
    int64_t modified_ns = 0;    // 0: a synthetic file.
    uint64_t header_bytes = 0;  // Includes the 8 bytes of the length.
    XXH128_hash_t header_hash = {};
  };
  std::string model;  // Path of a folder, or name of a synthetic model.
  std::vector<File> files;
  std::optional<std::string> config;  // Text of config.json.
  std::optional<std::string> params;  // Text of params.json.
  std::optional<std::string> index;   // Text of model.safetensors.index.json.
  absl::flat_hash_map<std::string, TensorInfo> tensors;
  absl::flat_hash_map<std::string, std::string> unsupported;  // Name -> dtype.
};

// Reads the files of a checkpoint. An implementation reads a folder, fetches
// from other hosts, or generates synthetic bytes. Immutable and thread-safe.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  const CheckpointContents& contents() const { return contents_; }

  // Reads bytes [offset, offset + size) of file `file`, an index into
  // contents().files. Offset 0 is the start of the file, before its header. The
  // range must lie in the file. DATA_LOSS: the file has changed since it was
  // opened.
  virtual absl::Status Read(int file, uint64_t offset, size_t size,
                            void* destination) const = 0;

  // Reads `count` ranges of `size` bytes into consecutive memory. Range i
  // begins at offset + i * stride.
  virtual absl::Status ReadRows(int file, uint64_t offset, size_t size,
                                uint64_t stride, size_t count,
                                char* destination) const {
    absl::Status status;
    for (size_t i = 0; i < count && status.ok(); ++i) {
      status = Read(file, offset + i * stride, size, destination + i * size);
    }
    return status;
  }

  // Returns true if the bytes of a file come from other hosts.
  virtual bool Fetches(int /*file*/) const { return false; }
  // Returns the bytes of all files that have come from other hosts so far.
  virtual uint64_t bytes_fetched() const { return 0; }

 protected:
  CheckpointContents contents_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_CHECKPOINT_SOURCE_H_
