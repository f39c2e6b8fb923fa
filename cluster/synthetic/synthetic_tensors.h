// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint of random weights: names and shapes by
// model_tensors.h, types as DeepSeek-V3 and R1 are published (fp8 e4m3 blocks
// with float32 scales, the rest bf16, the router's correction float32), and
// distributions of their values.
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TENSORS_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/model/model_spec.h"
#include "kernels/dtype.h"

namespace ringfleet::cluster {

struct SyntheticTensor {
  enum class Values {
    kNormal,  // Mean 0 and `deviation`; for fp8, after scaling.
    kScale,   // Scales of fp8 blocks that give the weights `deviation`.
    kNorm,    // Around 1, one in 256 about 5: channels with outliers.
    kBias,    // Makes the router's experts as popular as wanted.
  };

  std::string name;
  kernels::Dtype dtype = kernels::Dtype::kBf16;
  std::vector<int64_t> shape;
  Values values = Values::kNormal;
  double deviation = 0;
  std::string copy_of;  // A tensor with equal values; empty: none.
};

// All tensors, layer by layer. Deviations keep activations near 1: a product
// of an input with elements near 1 has elements near 1; what attention and MLP
// add to the residual stream (embeddings of deviation 1) is about half of it,
// so that a token's experts follow from the token more than from its
// neighbours; logits of the head deviate by 2, so that the likeliest of 32768
// tokens has a few percent.
//
// Requires the architecture of V3 with q_lora_rank > 0, noaux_tc routing, fp8
// blocks and an own head.
std::vector<SyntheticTensor> SyntheticTensors(const ModelSpec& spec);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TENSORS_H_
