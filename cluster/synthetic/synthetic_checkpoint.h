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

// The safetensors files of a synthetic model. No file exists: any range of
// bytes is generated when it is read, from the seed and the range's position
// (weight_stream.h). A folder of files with these bytes is an equal checkpoint.
//
// Opening takes milliseconds and about 200 KB of memory for a model of any
// size. The first read of a router's correction bias takes tenths of a second.
class SyntheticCheckpoint final : public CheckpointSource {
 public:
  // Opens the checkpoint with the name `model`. Errors: those of
  // ParseSyntheticModel.
  static absl::StatusOr<std::unique_ptr<SyntheticCheckpoint>> Open(
      const std::string& model);

  absl::Status Read(int file, uint64_t offset, size_t size,
                    void* destination) const override;

  const SyntheticModel& model() const { return model_; }
  // Returns the number of values in all tensors but the scales of fp8 blocks.
  uint64_t parameters() const { return parameters_; }
  // Returns the bytes of all *.safetensors files, with their headers.
  uint64_t bytes() const;

 private:
  // A tensor's bytes [begin, end) in the data of its file. `tensor` is its
  // index in the generator's tensors().
  struct Extent {
    uint64_t begin = 0;
    uint64_t end = 0;
    size_t tensor = 0;
  };
  struct File {
    std::string header;           // Preceded by its length.
    std::vector<Extent> extents;  // Ascending, without gaps.
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
