// SPDX-License-Identifier: Apache-2.0
// An independent forward pass in float64. It is written from the papers only
// (DeepSeek-V2, arXiv:2405.04434; DeepSeek-V3, arXiv:2412.19437; YaRN,
// arXiv:2309.00071). It evaluates a whole prompt at once, without cache and
// shards. It shares with kernels and worker only the checkpoint reader and the
// rounding of numbers.
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
  // [num_hidden_layers + 1][positions][hidden_size]: the embedding, then the
  // residual stream after each layer but the last, then the output of the final
  // norm.
  std::vector<Rows> hidden;
  Rows mtp_logits;  // [positions - 1][vocab_size]; empty without an MTP layer.
  // Number of tokens per [layer][expert], without the MTP layer. Empty for
  // dense layers.
  std::vector<std::vector<uint64_t>> expert_counts;
  // The least difference of scores between a chosen group or expert and the
  // best one that was not chosen, over all tokens. Below about 1e-5, float32
  // may choose another expert.
  double min_route_gap = 0;
};

// Returns log softmax(logits)[id].
double LogProbability(const Vector& logits, uint32_t id);

// Returns the Kullback-Leibler divergence of softmax(logits) from
// softmax(reference), in nats.
double KlDivergence(const Vector& reference, const Vector& logits);

class ReferenceModel {
 public:
  // Makes a model with weights of `form`. Forms other than f32 round three
  // things, and leave all others in float64:
  //   weights and inputs of every product, except the router's, to `form`
  //   rows of the cache to bfloat16
  //   factors of attention to bfloat16, if this host multiplies bfloat16
  // `absorbs`: attention works on latents, and not on keys and values of each
  // head. The products of attention then round other factors.
  explicit ReferenceModel(const std::string& model_dir,
                          kernels::WeightForm form = kernels::WeightForm::kF32,
                          bool absorbs = false);

  ReferenceOutput Evaluate(const std::vector<uint32_t>& ids);

  const cluster::ModelSpec& spec() const { return spec_; }

 private:
  // Returns a tensor, dequantised and row-major. Reads the tensor at the first
  // use.
  const Vector& Tensor(const std::string& name);
  Vector Read(const cluster::TensorInfo& info) const;
  // Returns the weights of a product with `columns` inputs, rounded to form_.
  const Vector& RoundedTensor(const std::string& name, size_t columns);
  Vector Product(const std::string& name, const Vector& x);
  Vector Normed(const std::string& name, const Vector& x);
  // As Normed, with the epsilon of the latents' norms.
  Vector NormedLatent(const std::string& name, const Vector& x);
  Vector NormedBy(const std::string& name, double epsilon, const Vector& x);
  Vector Mlp(const std::string& prefix, const Vector& x);
  // Input of attention, a row for each position.
  struct AttentionInput {
    Rows queries;  // Queries of all heads, with rotated rope parts.
    Rows cache;    // Latents, then rotated rope keys.
  };
  bool RoundsAttention() const;
  // Returns W_UK transposed, [heads * kv_lora_rank][qk_nope_head_dim], rounded
  // to form_.
  const Vector& TransposedKeys(const std::string& kv_b);
  // Return the results of all heads, [positions][heads * v_head_dim].
  Rows AttendExpanded(const std::string& kv_b, const AttentionInput& input);
  Rows AttendAbsorbed(const std::string& kv_b, const AttentionInput& input);
  Rows AttendHead(Rows queries, Rows keys, Rows values) const;
  void AddAttention(const std::string& prefix, Rows& x);
  void AddFeedForward(int layer, Rows& x, std::vector<uint64_t>* counts);
  // Returns the router weight of each chosen expert.
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
