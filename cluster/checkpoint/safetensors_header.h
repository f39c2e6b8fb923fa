// SPDX-License-Identifier: Apache-2.0
// Parses headers and index of a checkpoint. A file is an 8-byte little-endian
// header length, a JSON header that maps names to dtype, shape and byte range,
// and the data
// (https://github.com/huggingface/safetensors#format).
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_HEADER_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

// The format's own limit on a header; DeepSeek-R1's index has 9 MB.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

inline constexpr char kIndexName[] = "model.safetensors.index.json";

// A tensor of a header; its dtype may be one that cannot be read.
struct HeaderEntry {
  TensorInfo info;                // Without `file`.
  std::string unsupported_dtype;  // Empty: info has the dtype.
};

struct Header {
  std::string text;
  std::vector<HeaderEntry> entries;
};

// Reads `size` bytes of a file from `offset` on.
using ReadBytes = absl::FunctionRef<absl::Status(uint64_t offset, size_t size,
                                                 void* destination)>;

// Reads and validates the header of a file of `file_bytes`: every range lies in
// the data, none overlaps another, and each has the size of its shape. `path`
// is for messages.
//
// Errors: DATA_LOSS, with the file, the tensor, the value and the expectation;
// those of `read`.
absl::StatusOr<Header> ReadHeader(const std::string& path, uint64_t file_bytes,
                                  ReadBytes read);

// The files of a checkpoint, and the index's map from tensors to files.
struct CheckpointLayout {
  std::vector<std::string> files;                    // Sorted.
  std::optional<std::string> index;                  // Its text.
  absl::flat_hash_map<std::string, int> weight_map;  // Empty without index.
};

// Parses the text of an index. `path` is for messages.
//
// Errors: DATA_LOSS and INVALID_ARGUMENT, as FindCheckpointLayout has them.
absl::StatusOr<CheckpointLayout> ParseIndex(std::string text,
                                            const std::string& path);

// Finds the files of the checkpoint in a folder. Errors: NOT_FOUND (no
// checkpoint), DATA_LOSS (corrupt index), INVALID_ARGUMENT (several files
// without an index, or an index that names files outside the folder).
absl::StatusOr<CheckpointLayout> FindCheckpointLayout(
    const std::string& model_dir);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_HEADER_H_
