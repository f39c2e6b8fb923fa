// SPDX-License-Identifier: Apache-2.0
// Parses the headers and the index of a checkpoint. A safetensors file has
// three parts: an 8-byte little-endian header length; a JSON header that gives
// each tensor's name, dtype, shape and byte range; the data. See
// https://github.com/huggingface/safetensors#format.
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

// Largest accepted header or index. The safetensors format has this limit for
// headers. DeepSeek-R1's index has 9 MB.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

inline constexpr char kIndexName[] = "model.safetensors.index.json";

// A tensor in a header. Its dtype may be unsupported.
struct HeaderEntry {
  TensorInfo info;                // `file` is not set.
  std::string unsupported_dtype;  // Empty: info.dtype is valid.
};

struct Header {
  std::string text;
  std::vector<HeaderEntry> entries;
};

// Reads `size` bytes of a file from `offset` on.
using ReadBytes = absl::FunctionRef<absl::Status(uint64_t offset, size_t size,
                                                 void* destination)>;

// Reads and validates the header of a file of `file_bytes` bytes. Tensors must
// cover the data without gap or overlap. Each tensor must have the size of its
// shape. `path` is for messages.
//
// Errors: those of `read`. DATA_LOSS: names the file, the tensor, the value and
// the expected value.
absl::StatusOr<Header> ReadHeader(const std::string& path, uint64_t file_bytes,
                                  ReadBytes read);

// The files of a checkpoint, and the index's map from tensors to files.
struct CheckpointLayout {
  std::vector<std::string> files;    // Sorted.
  std::optional<std::string> index;  // Text of the index.
  // Tensor name -> index into `files`. Empty without an index.
  absl::flat_hash_map<std::string, int> weight_map;
};

// Parses the text of an index. `path` is for messages. DATA_LOSS: a corrupt
// index. INVALID_ARGUMENT: the index names files outside the folder.
absl::StatusOr<CheckpointLayout> ParseIndex(std::string text,
                                            const std::string& path);

// Finds the files of the checkpoint in a folder. Errors: those of ParseIndex.
// NOT_FOUND: no checkpoint. INVALID_ARGUMENT: several *.safetensors files
// without an index.
absl::StatusOr<CheckpointLayout> FindCheckpointLayout(
    const std::string& model_dir);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_HEADER_H_
