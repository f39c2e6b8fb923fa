// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/absorbed_cost.h"

#include <algorithm>

#include "cluster/model/model_tensors.h"

namespace ringfleet::cluster {
namespace {

// Returns the multiplications of one token with the weights of all layers. The
// head is left out, because it sees the last token only. kv_b belongs to
// attention, which multiplies with it in either form.
double WeightProducts(const ModelSpec& spec) {
  double products = 0;
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    for (const ModelTensor& tensor :
         LayerTensors(spec, spec.IsMoeLayer(layer))) {
      if (tensor.is_vector() || tensor.role == TensorRole::kKvB) continue;
      products += static_cast<double>(tensor.elements()) *
                  (tensor.each_expert() ? spec.num_experts_per_tok : 1);
    }
  }
  return products;
}

}  // namespace

double AbsorbedCost(const ModelSpec& spec, int positions, int chunk) {
  const double heads = spec.num_attention_heads;
  const double rank = spec.kv_lora_rank;
  const double rope = spec.qk_rope_head_dim;
  const double expanded_dim = spec.qk_nope_head_dim + spec.v_head_dim;
  double absorbed = 0;
  double cheaper = 0;
  for (int begin = 0; begin < positions; begin += chunk) {
    const double queries = std::min(chunk, positions - begin);
    const double visible = begin + queries;
    const double pairs = queries * (visible - (queries - 1) / 2);
    // Queries and results pass W_UK and W_UV once each; or every visible
    // position does.
    const double as_latents =
        queries * rank * expanded_dim + pairs * (2 * rank + rope);
    const double as_heads =
        visible * rank * expanded_dim + pairs * (expanded_dim + rope);
    absorbed += heads * as_latents;
    cheaper += heads * std::min(as_latents, as_heads);
  }
  const double products = WeightProducts(spec) * positions;
  const double layers = spec.num_hidden_layers;
  return (products + layers * absorbed) / (products + layers * cheaper);
}

}  // namespace ringfleet::cluster
