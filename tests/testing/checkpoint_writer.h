// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints for tests: from given tensors, or with random weights for
// a given ModelSpec. Files have the format of published checkpoints.
#ifndef RINGFLEET_TESTS_TESTING_CHECKPOINT_WRITER_H_
#define RINGFLEET_TESTS_TESTING_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cluster/model/model_spec.h"
#include "kernels/dtype.h"

namespace ringfleet::testing {

// A temporary folder. The destructor removes it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  // Returns the path of the file `name` in the folder.
  std::string File(absl::string_view name) const;

 private:
  std::string path_;
};

// Write or return the content of a file.
void WriteFile(const std::string& path, absl::string_view content);
std::string ReadFile(const std::string& path);
// Flips the lowest bit of the byte at `offset`. Requires that the file has the
// byte.
void FlipByte(const std::string& path, uint64_t offset);

// A tensor to write.
struct TestTensor {
  std::string name;
  std::string dtype;  // Safetensors' name: "F32", "BF16", "F16", "F8_E4M3", ...
  std::vector<int64_t> shape;
  std::string data;  // Little-endian elements.
};

// Returns a tensor of `values`, rounded to `dtype`.
TestTensor MakeTensor(std::string name, kernels::Dtype dtype,
                      std::vector<int64_t> shape,
                      const std::vector<float>& values);

// Returns the bytes of a safetensors file: length of the header, JSON header,
// and data in the order of `tensors`.
std::string SafetensorsBytes(const std::vector<TestTensor>& tensors);
// Returns the bytes of a file with any header, for tests of broken files:
// length of `header`, `header`, `data`.
std::string RawSafetensors(absl::string_view header, absl::string_view data);

// Writes a checkpoint. Tensor i goes to file i modulo `num_files`, so a weight
// and its scales lie in different files. Writes an index unless there is one
// file.
void WriteCheckpoint(const std::string& dir, absl::string_view config_json,
                     const std::vector<TestTensor>& tensors, int num_files);

// Returns a config.json that parses to `spec`.
std::string ConfigJson(const cluster::ModelSpec& spec);

// Return small models with every feature of their family. No world size divides
// their sizes. Blocks of fp8 (V3) are smaller than a shard. Tests may change
// fields.
cluster::ModelSpec TinyV3Spec();
cluster::ModelSpec TinyV2Spec();
cluster::ModelSpec TinyV2LiteSpec();

// Returns random weights that `seed` determines. Their magnitude keeps
// activations near 1. Matrices of products have `dtype`. fp8 requires
// spec.weight_block_rows, and adds scales. The router's bias is f32, and all
// other tensors are bf16. Includes the multi-token prediction layer with its
// copies of embedding and head.
std::vector<TestTensor> RandomTensors(const cluster::ModelSpec& spec,
                                      kernels::Dtype dtype, uint64_t seed);

// Writes RandomTensors and ConfigJson to `dir`.
void WriteRandomModel(const std::string& dir, const cluster::ModelSpec& spec,
                      kernels::Dtype dtype, uint64_t seed, int num_files = 3);

// Writes a model that has only the embedding, in bf16, as a hole in its file.
// For tests of the time before and during a read.
void WriteHollowModel(const std::string& dir, const cluster::ModelSpec& spec);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_CHECKPOINT_WRITER_H_
