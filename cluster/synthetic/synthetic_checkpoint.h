// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_CHECKPOINT_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/checkpoint_source.h"
#include "cluster/model/model_spec.h"
#include "cluster/synthetic/synthetic_generator.h"
#include "cluster/synthetic/synthetic_model.h"

namespace ringfleet::cluster {

// The safetensors files of a synthetic model, without files: any range of their
// bytes is made when it is read, from seed and place alone (weight_stream.h).
// Writing out these bytes gives a checkpoint that is the same in every respect.
//
// Opening takes milliseconds and about 200 KB for a model of any size. A
// router's correction is computed in tenths of a second when a byte of it is
// first read.
class SyntheticCheckpoint final : public CheckpointSource {
 public:
  // Errors: those of ParseSyntheticModel.
  static absl::StatusOr<std::unique_ptr<SyntheticCheckpoint>> Open(
      const std::string& model);

  absl::Status Read(int file, uint64_t offset, size_t size,
                    void* destination) const override;

  const SyntheticModel& model() const { return model_; }
  // Elements of all tensors but the scales of fp8 blocks.
  uint64_t parameters() const { return parameters_; }
  // Bytes of all files with tensors, with their headers.
  uint64_t bytes() const;

 private:
  // A tensor's place among the data of its file.
  struct Extent {
    uint64_t begin = 0;
    uint64_t end = 0;
    size_t tensor = 0;
  };
  struct File {
    std::string header;           // With its length in front.
    std::vector<Extent> extents;  // By place, without gaps.
  };

  SyntheticCheckpoint(const SyntheticModel& model, const ModelSpec& spec);
  void PlaceTensors();
  void AddFile(int num_files, std::vector<size_t> tensors);
  void MakeIndex();

  const SyntheticModel model_;
  const SyntheticGenerator generator_;
  std::vector<File> layout_;
  uint64_t parameters_ = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_CHECKPOINT_H_
