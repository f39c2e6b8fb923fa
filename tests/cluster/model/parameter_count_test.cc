// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/parameter_count.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"

namespace ringfleet::cluster {
namespace {

// The files are an independent count.
TEST(CountParametersTest, IsWhatTheFilesHold) {
  for (const char* model : {"tiny-v2-lite", "tiny-v2", "tiny-v3"}) {
    SCOPED_TRACE(model);
    const std::string folder = absl::StrCat(RINGFLEET_TEST_MODELS, "/", model);
    const auto spec = LoadModelSpec(folder);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto checkpoint = OpenCheckpoint(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const std::string mtp =
        absl::StrCat("model.layers.", spec->num_hidden_layers, ".");
    uint64_t count = 0;
    for (const std::string& name : (*checkpoint)->Names()) {
      if (absl::EndsWith(name, "_scale_inv") || absl::StartsWith(name, mtp)) {
        continue;
      }
      const auto tensor = (*checkpoint)->Find(name);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      uint64_t elements = 1;
      for (const int64_t size : (*tensor)->shape) elements *= size;
      count += elements;
    }
    EXPECT_EQ(CountParameters(*spec), count);
  }
}

// DeepSeek-V3, arXiv:2412.19437, section 4.2: 671 B, of which each token uses
// 37 B.
TEST(CountParametersTest, R1HasItsPublishedNumber) {
  ModelSpec spec;
  spec.vocab_size = 129280;
  spec.hidden_size = 7168;
  spec.num_hidden_layers = 61;
  spec.num_attention_heads = 128;
  spec.q_lora_rank = 1536;
  spec.kv_lora_rank = 512;
  spec.qk_nope_head_dim = 128;
  spec.qk_rope_head_dim = 64;
  spec.v_head_dim = 128;
  spec.intermediate_size = 18432;
  spec.moe_intermediate_size = 2048;
  spec.n_routed_experts = 256;
  spec.n_shared_experts = 1;
  spec.num_experts_per_tok = 8;
  spec.first_k_dense_replace = 3;
  spec.topk_method = TopkMethod::kNoauxTc;
  EXPECT_EQ(CountParameters(spec) / 1'000'000'000, 671u);
  spec.n_routed_experts = 8;
  EXPECT_NEAR(CountParameters(spec) * 1e-9, 37, 0.6);
}

}  // namespace
}  // namespace ringfleet::cluster
