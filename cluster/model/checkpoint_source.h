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

// The facts in a checkpoint's headers, however its bytes come about.
struct CheckpointContents {
  struct File {
    std::string name;
    uint64_t size = 0;
    int64_t modified_ns = 0;    // 0: made when it is asked for.
    uint64_t header_bytes = 0;  // With the length before it.
    XXH128_hash_t header_hash = {};
  };
  std::string model;  // A folder, or the name of a synthetic model.
  std::vector<File> files;
  std::optional<std::string> config;  // Text of config.json.
  std::optional<std::string> index;   // And model.safetensors.index.json.
  absl::flat_hash_map<std::string, TensorInfo> tensors;
  absl::flat_hash_map<std::string, std::string> unsupported;  // Name to dtype.
};

// The bytes of a checkpoint's files: read from a folder, fetched from other
// hosts, or made when asked for. Immutable; thread-safe.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  const CheckpointContents& contents() const { return contents_; }

  // Bytes [offset, offset + size) of a file, its header included; the range
  // lies in the file. DATA_LOSS when the file is no longer what was opened.
  virtual absl::Status Read(int file, uint64_t offset, size_t size,
                            void* destination) const = 0;

  // Reads `count` ranges of `size` bytes that begin `stride` bytes apart, and
  // stores them one behind the other.
  virtual absl::Status ReadRows(int file, uint64_t offset, size_t size,
                                uint64_t stride, size_t count,
                                char* destination) const {
    absl::Status status;
    for (size_t i = 0; i < count && status.ok(); ++i) {
      status = Read(file, offset + i * stride, size, destination + i * size);
    }
    return status;
  }

  // True if the bytes of a file come from other hosts.
  virtual bool Fetches(int /*file*/) const { return false; }
  // Bytes that came from other hosts so far, of all files.
  virtual uint64_t bytes_fetched() const { return 0; }

 protected:
  CheckpointContents contents_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_CHECKPOINT_SOURCE_H_
