// SPDX-License-Identifier: Apache-2.0
// An independent forward pass in float64, written from the papers alone
// (DeepSeek-V2, arXiv:2405.04434; DeepSeek-V3, arXiv:2412.19437; YaRN,
// arXiv:2309.00071): a whole prompt at once, no cache, no sharding. It shares
// nothing with the kernels and the worker but the checkpoint reader, and what
// rounds numbers.
#ifndef RINGFLEET_TESTS_TESTING_REFERENCE_MODEL_H_
#define RINGFLEET_TESTS_TESTING_REFERENCE_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::testing {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;

struct ReferenceOutput {
  Rows logits;  // [positions][vocab_size]
  // [num_hidden_layers + 1][positions][hidden_size]: the embedding, the
  // residual stream after each layer but the last, the final norm's output.
  std::vector<Rows> hidden;
  Rows mtp_logits;  // [positions - 1][vocab_size]; empty without such a layer.
  // Exact tokens per [layer][expert], empty for dense layers; without MTP.
  std::vector<std::vector<uint64_t>> expert_counts;
  // The least distance between a chosen group or expert and the best one that
  // was not chosen, over all tokens: below about 1e-5 float32 may choose
  // otherwise.
  double min_route_gap = 0;
};

// log softmax(logits)[id]
double LogProbability(const Vector& logits, uint32_t id);

// The divergence of softmax(logits) from softmax(reference), in nats.
double KlDivergence(const Vector& reference, const Vector& logits);

class ReferenceModel {
 public:
  // With another form than f32, weights and inputs of every product are rounded
  // as this form rounds them, the router's excepted, what is cached to
  // bfloat16, and where this host multiplies bfloat16 so are the factors of
  // attention; everything else stays float64. `absorbs`: attention in the space
  // of the latents, with other products to round than each head's keys and
  // values.
  explicit ReferenceModel(const std::string& model_dir,
                          kernels::WeightForm form = kernels::WeightForm::kF32,
                          bool absorbs = false);

  ReferenceOutput Evaluate(const std::vector<uint32_t>& ids);

  const cluster::ModelSpec& spec() const { return spec_; }

 private:
  // Tensors are read on first use: dequantised, row-major.
  const Vector& Tensor(const std::string& name);
  Vector Read(const cluster::TensorInfo& info) const;
  // The same of a product with so many inputs, rounded to form_.
  const Vector& RoundedTensor(const std::string& name, size_t columns);
  Vector Product(const std::string& name, const Vector& x);
  Vector Normed(const std::string& name, const Vector& x);
  Vector Mlp(const std::string& prefix, const Vector& x);
  // A row for each position.
  struct AttentionInput {
    Rows queries;  // Of all heads, the rope part rotated.
    Rows cache;    // Latent, rotated rope key.
  };
  bool RoundsAttention() const;
  // [heads * kv_lora_rank][qk_nope_head_dim], rounded to form_.
  const Vector& TransposedKeys(const std::string& kv_b);
  // Results of all heads, [positions][heads * v_head_dim].
  Rows AttendExpanded(const std::string& kv_b, const AttentionInput& input);
  Rows AttendAbsorbed(const std::string& kv_b, const AttentionInput& input);
  Rows AttendHead(Rows queries, Rows keys, Rows values) const;
  void AddAttention(const std::string& prefix, Rows& x);
  void AddFeedForward(int layer, Rows& x, std::vector<uint64_t>* counts);
  // Weight of each chosen expert.
  std::map<int, double> ChooseExperts(const std::string& prefix,
                                      const Vector& x);
  Rows HeadLogits(const Rows& normed);

  const kernels::WeightForm form_;
  const bool absorbs_;
  cluster::ModelSpec spec_;
  std::unique_ptr<cluster::Checkpoint> checkpoint_;
  std::map<std::string, Vector> tensors_;
  std::map<std::string, Vector> rounded_;
  double min_route_gap_ = 0;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_REFERENCE_MODEL_H_
