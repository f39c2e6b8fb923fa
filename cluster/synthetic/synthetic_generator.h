// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_GENERATOR_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/model/model_spec.h"
#include "cluster/synthetic/synthetic_tensors.h"
#include "cluster/synthetic/weight_stream.h"

namespace ringfleet::cluster {

// Generates the values of a model's tensors. Each tensor has its own random
// stream, keyed by seed and name. A table of the tensor's distribution turns
// the stream into values. Keeps tables in memory, but no tensor except the
// routers' correction biases. Thread-safe.
class SyntheticGenerator {
 public:
  // `zipf` is the exponent of the experts' popularity (expert_popularity.h).
  SyntheticGenerator(const ModelSpec& spec,
                     std::vector<SyntheticTensor> tensors, uint64_t seed,
                     double zipf);
  ~SyntheticGenerator();
  SyntheticGenerator(const SyntheticGenerator&) = delete;
  SyntheticGenerator& operator=(const SyntheticGenerator&) = delete;

  const std::vector<SyntheticTensor>& tensors() const { return tensors_; }

  // Writes bytes [offset, offset + size) of tensors()[tensor], little-endian,
  // row-major. The first call for a router's correction bias computes the whole
  // tensor. Other calls for the tensor wait until the first has computed it.
  void Fill(size_t tensor, uint64_t offset, size_t size,
            void* destination) const;

 private:
  struct Bias {
    std::once_flag once;
    std::vector<float> values;
  };
  // The source of a tensor's values: one of the three tables, or `bias`.
  struct Recipe {
    uint64_t key = 0;
    const CodeTable<uint8_t>* f8 = nullptr;
    const CodeTable<uint16_t>* bf16 = nullptr;
    const CodeTable<uint32_t>* f32 = nullptr;
    std::unique_ptr<Bias> bias;
  };

  Recipe MakeRecipe(const SyntheticTensor& tensor, uint64_t seed);
  // Returns all values of a bf16 tensor as float32.
  std::vector<float> Floats(const std::string& name) const;
  std::vector<float> MakeBias(const SyntheticTensor& bias, uint64_t key) const;

  const ModelSpec spec_;
  const std::vector<SyntheticTensor> tensors_;
  const double zipf_;
  CodeTable<uint16_t> norm_;
  std::map<double, CodeTable<uint16_t>> normal_;  // Deviation -> table.
  std::map<double, CodeTable<uint32_t>> scale_;   // Weight deviation -> table.
  std::map<std::string, size_t> index_of_;
  std::vector<Recipe> recipes_;  // Indexed like tensors_.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_GENERATOR_H_
