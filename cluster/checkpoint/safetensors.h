// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint in the format of the Hugging Face hub: *.safetensors
// files, with model.safetensors.index.json if there are several. Opening reads
// headers only. Weights are read by byte range, so a worker reads only its own
// weights. Synthetic checkpoints (synthetic_model.h) are read through this
// class, too.
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/model/checkpoint_source.h"
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

// The names of tensors are those of a model of text alone: "model.norm.weight",
// also where a checkpoint has the prefixes of a larger model
// (KnownNamePrefixes). TensorInfo::name is the name in the files.
//
// Immutable and thread-safe once open.
class Checkpoint final : public TensorSource {
 public:
  // OpenCheckpoint (open_model.h) makes `source`.
  explicit Checkpoint(std::unique_ptr<const CheckpointSource> source);
  ~Checkpoint() override;

  absl::StatusOr<const TensorInfo*> Find(absl::string_view name) const override;
  std::vector<std::string> Names() const override;
  const std::string& FileName(const TensorInfo& tensor) const override;
  absl::StatusOr<std::unique_ptr<const OpenSlice>> Open(
      const TensorSlice& slice, float limit) const override;

  // Reads bytes [offset, offset + size) of the tensor's data. Errors:
  // DATA_LOSS: the file has become shorter.
  absl::Status Read(const TensorInfo& tensor, uint64_t offset, size_t size,
                    void* destination) const;
  // Reads `count` ranges of `size` bytes into consecutive memory. Range i
  // begins at byte offset + i * stride of the tensor's data. Bytes between
  // ranges are not read.
  absl::Status ReadRows(const TensorInfo& tensor, uint64_t offset, size_t size,
                        uint64_t stride, size_t count, char* destination) const;
  // Returns the number of bytes of tensors read from files of this host so far.
  uint64_t bytes_read() const;
  // Returns the number of bytes of headers, and of data for fingerprints and
  // hashes, read from files of this host so far.
  uint64_t other_bytes_read() const;
  // Return the number of bytes fetched from other hosts so far: of tensors, and
  // of all else.
  uint64_t bytes_fetched() const;
  uint64_t other_bytes_fetched() const;

  // Returns the text of config.json, or "" if there is none.
  std::string config() const;
  // Returns the text of params.json, or "" if there is none.
  std::string params() const;

  // Returns the XXH3-64 of the tensor's data. Errors: those of Read.
  absl::StatusOr<uint64_t> Hash(const TensorInfo& tensor) const;

  // Returns a hex digest that tells checkpoints apart. The digest covers
  // config.json, params.json, the index, every header and file size, every byte
  // of norms, biases and routers (213 MB of R1), and 64 evenly spread pages of
  // each file's data. The digest is no proof of integrity. A synthetic
  // checkpoint has the digest of files with its bytes.
  absl::StatusOr<std::string> Fingerprint() const;

  // The facts about one file that Fingerprint hashes.
  struct FileFacts {
    std::string name;
    uint64_t bytes = 0;
    // Hash of the header; of all bytes for config.json and the index.
    uint64_t header_hash = 0;
    // Offset in the file, and hash, of each sampled page.
    std::vector<std::pair<uint64_t, uint64_t>> pages;
    // Name and hash of each tensor that is hashed wholly.
    std::vector<std::pair<std::string, uint64_t>> tensors;
  };
  absl::StatusOr<std::vector<FileFacts>> Describe() const;

  // Returns a hex digest of the files' names, sizes and times of modification
  // on this host. Any write to a file changes the digest. A copy of the files
  // may have another digest.
  std::string FileState() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_H_
