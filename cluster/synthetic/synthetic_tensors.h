// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint of random weights. Names and shapes follow
// model_tensors.h. Types are those of the published DeepSeek-V3 and R1: fp8
// e4m3 blocks with float32 scales, float32 for a router's correction bias, and
// bf16 for all else. Each tensor has a distribution of its values.
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
    kNormal,  // Normal: mean 0, `deviation` (of scaled fp8 values).
    kScale,   // Scales of fp8 blocks; weights then have `deviation`.
    kNorm,    // About 1; one value in 256 about 5 (outlier channels).
    kBias,    // Correction bias of BalanceRouter.
  };

  std::string name;
  kernels::Dtype dtype = kernels::Dtype::kBf16;
  std::vector<int64_t> shape;
  Values values = Values::kNormal;
  double deviation = 0;
  std::string copy_of;  // Name of a tensor with equal values; empty: none.
};

// Returns all tensors, layer by layer. Deviations keep activations near 1: a
// product with an input of deviation 1 has deviation 1. Embeddings have
// deviation 1. Attention and MLP add about half of the residual stream's
// deviation, so a token's experts depend on the token more than on its
// neighbours. Logits of the head have deviation 2, so the likeliest of 32768
// tokens has a probability of a few percent.
//
// Requires the V3 architecture with q_lora_rank > 0, noaux_tc routing, fp8
// blocks and a head that is not tied.
std::vector<SyntheticTensor> SyntheticTensors(const ModelSpec& spec);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TENSORS_H_
