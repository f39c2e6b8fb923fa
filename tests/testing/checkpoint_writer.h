// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints for tests: given tensors, or random models of a given
// ModelSpec as the hub stores them.
#ifndef RINGFLEET_TESTS_TESTING_CHECKPOINT_WRITER_H_
#define RINGFLEET_TESTS_TESTING_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cluster/model/model_spec.h"
#include "kernels/dtype.h"

namespace ringfleet::testing {

// A folder that goes away with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;

 private:
  std::string path_;
};

void WriteFile(const std::string& path, absl::string_view content);
std::string ReadFile(const std::string& path);
// Changes the lowest bit of the byte at `offset`, which the file has.
void FlipByte(const std::string& path, uint64_t offset);

struct TestTensor {
  std::string name;
  std::string dtype;  // As in a header: "F32", "BF16", "F16", "F8_E4M3", ...
  std::vector<int64_t> shape;
  std::string data;  // Little-endian elements.
};

// `values` rounded to f32, bf16 or f16, or to the nearest fp8.
TestTensor MakeTensor(std::string name, kernels::Dtype dtype,
                      std::vector<int64_t> shape,
                      const std::vector<float>& values);

// Length, JSON header, data in the given order.
std::string SafetensorsBytes(const std::vector<TestTensor>& tensors);
// Length and `header` as given, then `data`: for broken files.
std::string RawSafetensors(absl::string_view header, absl::string_view data);

// Writes the tensors to `num_files` files, dealt out in turn, so that a weight
// and its scales lie apart; with an index, unless there is one file.
void WriteCheckpoint(const std::string& dir, absl::string_view config_json,
                     const std::vector<TestTensor>& tensors, int num_files);

// A config.json that parses to `spec`.
std::string ConfigJson(const cluster::ModelSpec& spec);

// Small models with every feature of their family; sizes that no world size
// divides, and fp8 blocks smaller than a shard (V3). Fields may be changed.
cluster::ModelSpec TinyV3Spec();
cluster::ModelSpec TinyV2Spec();
cluster::ModelSpec TinyV2LiteSpec();

// Random weights of a size that keeps activations near 1, deterministic in
// `seed`. Products are stored as `dtype`; fp8 needs spec.weight_block_rows and
// brings its scales. Everything else is bf16, the router's bias f32. Includes
// the multi-token prediction layer with its copies of embedding and head.
std::vector<TestTensor> RandomTensors(const cluster::ModelSpec& spec,
                                      kernels::Dtype dtype, uint64_t seed);

// RandomTensors and ConfigJson, written to `dir`.
void WriteRandomModel(const std::string& dir, const cluster::ModelSpec& spec,
                      kernels::Dtype dtype, uint64_t seed, int num_files = 3);

// A model of which there is only the embedding, in bf16, and that only as a
// hole in its file: for what happens before and while it is read.
void WriteHollowModel(const std::string& dir, const cluster::ModelSpec& spec);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_CHECKPOINT_WRITER_H_
