// SPDX-License-Identifier: Apache-2.0
// The whole model against a float64 forward pass, on random checkpoints of
// shapes and settings that no published model has, split over ranks evenly
// and unevenly.
#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/reference_model.h"

namespace ringfleet::worker {
namespace {

using cluster::MeshShape;
using cluster::ModelSpec;
using kernels::Dtype;
using ringfleet::testing::LogProbability;
using ringfleet::testing::RankWorld;
using ringfleet::testing::ReferenceModel;
using ringfleet::testing::ReferenceOutput;
using ringfleet::testing::ScorePrompt;
using ringfleet::testing::TempDir;
using ringfleet::testing::TestTensor;

// Sums of some hundred float32 products of size 1 over a few layers come to
// 2e-6; tied embeddings have logits, and errors, ten times as large.
constexpr double kRandomLogprobTolerance = 5e-5;
constexpr double kRandomHiddenTolerance = 1e-5;  // Of the row's L2 norm.
// float32 scores are off by some 1e-6: with this distance between the chosen
// and the others no expert changes.
constexpr double kMinRouteGap = 1e-4;

struct RandomCase {
  std::string name;
  ModelSpec spec;
  uint64_t seed = 1;
  Dtype dtype = Dtype::kBf16;  // Of stored products.
  std::vector<int> lengths = {40};
  std::function<void(TestTensor&)> edit = nullptr;
};

std::ostream& operator<<(std::ostream& out, const RandomCase& test) {
  return out << test.name;
}

std::vector<uint32_t> RandomIds(int count, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> ids(count);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % vocab);
  return ids;
}

// Stores what is bf16 as `dtype`, with bits that bf16 does not have.
void StoreWider(Dtype dtype, TestTensor& tensor) {
  if (tensor.dtype != "BF16") return;
  std::vector<float> values(tensor.data.size() / 2);
  kernels::ToFloat(Dtype::kBf16, tensor.data.data(), values.size(),
                   values.data());
  for (float& value : values) value *= 1.003f;
  tensor =
      ringfleet::testing::MakeTensor(tensor.name, dtype, tensor.shape, values);
}

// All biases below 0, so that an expert that is masked by 0 instead of minus
// infinity would be preferred to those of the kept groups.
void MakeBiasNegative(TestTensor& tensor) {
  if (tensor.name.find("e_score_correction_bias") == std::string::npos) return;
  std::vector<float> values(tensor.data.size() / 4);
  kernels::ToFloat(Dtype::kF32, tensor.data.data(), values.size(),
                   values.data());
  for (float& value : values) value -= 1.5f;
  tensor = ringfleet::testing::MakeTensor(tensor.name, Dtype::kF32,
                                          tensor.shape, values);
}

ModelSpec V3(int hidden_size, int vocab_size) {
  ModelSpec spec = ringfleet::testing::TinyV3Spec();
  spec.hidden_size = hidden_size;
  spec.vocab_size = vocab_size;
  spec.max_position_embeddings = 1024;
  return spec;
}

ModelSpec V2(int hidden_size, int vocab_size) {
  ModelSpec spec = ringfleet::testing::TinyV2Spec();
  spec.hidden_size = hidden_size;
  spec.vocab_size = vocab_size;
  spec.max_position_embeddings = 1024;
  return spec;
}

ModelSpec With(ModelSpec spec, const std::function<void(ModelSpec&)>& change) {
  change(spec);
  return spec;
}

void ExpectMatches(const ReferenceOutput& expected,
                   const std::vector<uint32_t>& ids, bool mtp,
                   const v1::ScoreResult& score, double* max_error) {
  const auto compare = [&](float actual, const ringfleet::testing::Vector& row,
                           uint32_t id, const char* what, size_t position) {
    const double error = std::abs(actual - LogProbability(row, id));
    EXPECT_LE(error, kRandomLogprobTolerance)
        << what << " at position " << position << " of " << ids.size();
    *max_error = std::max(*max_error, error);
  };
  const size_t last = ids.size() - 1;
  ASSERT_EQ(score.logprobs_size(), static_cast<int>(last));
  for (size_t i = 0; i < last; ++i) {
    compare(score.logprobs(i), expected.logits[i], ids[i + 1], "logprob", i);
  }
  ASSERT_EQ(score.top_ids_size(), 8);
  const ringfleet::testing::Vector& logits = expected.logits[last];
  std::vector<double> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (int i = 0; i < 8; ++i) {
    compare(score.top_logprobs(i), logits, score.top_ids(i), "top", last);
    EXPECT_NEAR(logits[score.top_ids(i)], sorted[i], 1e-4);
  }
  ASSERT_EQ(score.hidden_states_size(),
            static_cast<int>(expected.hidden.size()));
  for (int layer = 0; layer < score.hidden_states_size(); ++layer) {
    const ringfleet::testing::Vector& row = expected.hidden[layer][last];
    double squares = 0;
    for (double value : row) squares += value * value;
    const double norm = std::sqrt(squares);
    const v1::HiddenState& state = score.hidden_states(layer);
    EXPECT_NEAR(state.norm(), norm, kRandomHiddenTolerance * norm);
    for (int i = 0; i < state.head_size(); ++i) {
      EXPECT_NEAR(state.head(i), row[i], kRandomHiddenTolerance * norm)
          << "layer " << layer << " element " << i;
    }
  }
  if (!mtp) return;
  ASSERT_EQ(score.mtp_top_ids_size(), static_cast<int>(last));
  for (size_t i = 0; i < last; ++i) {
    const ringfleet::testing::Vector& row = expected.mtp_logits[i];
    compare(score.mtp_top_logprobs(i), row, score.mtp_top_ids(i), "MTP", i);
    EXPECT_NEAR(row[score.mtp_top_ids(i)],
                *std::max_element(row.begin(), row.end()), 1e-4);
  }
}

class RandomModelTest : public ::testing::TestWithParam<RandomCase> {};

TEST_P(RandomModelTest, MatchesFloat64OnAnyMesh) {
  const RandomCase& test = GetParam();
  TempDir folder;
  std::vector<TestTensor> tensors =
      ringfleet::testing::RandomTensors(test.spec, test.dtype, test.seed);
  if (test.edit) {
    for (TestTensor& tensor : tensors) test.edit(tensor);
  }
  ringfleet::testing::WriteCheckpoint(
      folder.path(), ringfleet::testing::ConfigJson(test.spec), tensors, 2);
  const int longest =
      *std::max_element(test.lengths.begin(), test.lengths.end());
  const std::vector<uint32_t> ids =
      RandomIds(longest, test.spec.vocab_size, test.seed);
  const ReferenceOutput expected = ReferenceModel(folder.path()).Evaluate(ids);
  ASSERT_GE(expected.min_route_gap, kMinRouteGap) << "choose another seed";

  struct Split {
    MeshShape mesh;
    int span;
  };
  const Split splits[] = {
      {{1, 1, 1}, 512}, {{1, 1, 2}, 128}, {{1, 1, 3}, 33}, {{1, 1, 5}, 11},
      {{1, 1, 7}, 50},  {{1, 2, 1}, 9},   {{1, 3, 2}, 64}, {{1, 5, 1}, 512},
  };
  double max_error = 0;
  for (const auto& [mesh, span] : splits) {
    RankWorld world(folder.path(), {.mesh = mesh});
    for (const int length : test.lengths) {
      SCOPED_TRACE(::testing::Message()
                   << "expert " << mesh.expert << " tensor " << mesh.tensor
                   << ", " << length << " tokens in spans of " << span);
      const std::vector<uint32_t> prompt(ids.begin(), ids.begin() + length);
      v1::ScoreOptions options;
      options.set_top(8);
      options.set_hidden(true);
      options.set_mtp(test.spec.num_nextn_predict_layers > 0);
      ExpectMatches(expected, prompt, options.mtp(),
                    ScorePrompt(world, prompt, options, span), &max_error);
    }
    if (::testing::Test::HasFailure()) break;
  }
  RecordProperty("max_logprob_error", std::to_string(max_error * 1e6) + "e-6");
}

std::vector<RandomCase> RandomCases() {
  std::vector<RandomCase> cases;
  cases.push_back({.name = "experts_in_three_groups_fp8_blocks_of_128",
                   .spec = With(V3(200, 509),
                                [](ModelSpec& spec) {
                                  spec.n_routed_experts = 24;
                                  spec.n_group = 3;
                                  spec.num_experts_per_tok = 5;
                                  spec.intermediate_size = 300;
                                  spec.moe_intermediate_size = 130;
                                  spec.kv_lora_rank = 132;
                                  spec.weight_block_rows = 128;
                                  spec.weight_block_columns = 128;
                                }),
                   .dtype = Dtype::kF8E4M3});
  cases.push_back({.name = "no_dense_layer_fifteen_experts_f16",
                   .spec = With(V3(136, 509),
                                [](ModelSpec& spec) {
                                  spec.n_routed_experts = 15;
                                  spec.n_group = 5;
                                  spec.topk_group = 3;
                                  spec.num_experts_per_tok = 4;
                                  spec.first_k_dense_replace = 0;
                                }),
                   .dtype = Dtype::kF16,
                   .edit = [](TestTensor& t) { StoreWider(Dtype::kF16, t); }});
  cases.push_back({.name = "no_rope_scaling_f32",
                   .spec = With(V2(136, 211),
                                [](ModelSpec& spec) {
                                  spec.rope_scaling.reset();
                                  spec.routed_scaling_factor = 1.5;
                                }),
                   .dtype = Dtype::kF32,
                   .edit = [](TestTensor& t) { StoreWider(Dtype::kF32, t); }});
  cases.push_back({.name = "dense_queries_with_sigmoid_router",
                   .spec = With(V3(72, 509), [](ModelSpec& spec) {
                     spec.q_lora_rank = 0;
                     spec.n_shared_experts = 3;
                   })});
  cases.push_back({.name = "every_second_layer_sparse",
                   .spec = With(V3(56, 131), [](ModelSpec& spec) {
                     spec.num_hidden_layers = 5;
                     spec.moe_layer_freq = 2;
                   })});
  cases.push_back({.name = "no_shared_experts_wide_values_fp8_blocks_of_24",
                   .spec = With(V3(120, 257),
                                [](ModelSpec& spec) {
                                  spec.n_shared_experts = 0;
                                  spec.v_head_dim = 22;
                                  spec.qk_rope_head_dim = 6;
                                  spec.weight_block_rows = 24;
                                  spec.weight_block_columns = 40;
                                }),
                   .dtype = Dtype::kF8E4M3});
  cases.push_back({.name = "all_layers_dense",
                   .spec = With(V2(136, 509), [](ModelSpec& spec) {
                     spec.n_routed_experts = 0;
                     spec.n_shared_experts = 0;
                     spec.first_k_dense_replace = 0;
                   })});
  cases.push_back({.name = "tied_embeddings",
                   .spec = With(V2(88, 301), [](ModelSpec& spec) {
                     spec.tie_word_embeddings = true;
                     spec.routed_scaling_factor = 1;
                   })});
  cases.push_back({.name = "softmax_router_normalised_not_scaled",
                   .spec = With(V2(40, 101), [](ModelSpec& spec) {
                     spec.norm_topk_prob = true;
                   })});
  cases.push_back({.name = "softmax_router_single_expert_scaled",
                   .spec = With(V2(40, 101), [](ModelSpec& spec) {
                     spec.norm_topk_prob = true;
                     spec.num_experts_per_tok = 1;
                     spec.routed_scaling_factor = 3;
                   })});
  cases.push_back({.name = "sigmoid_router_not_normalised",
                   .spec = With(V3(40, 101), [](ModelSpec& spec) {
                     spec.norm_topk_prob = false;
                   })});
  cases.push_back(
      {.name = "negative_router_biases",
       .spec = With(V3(56, 131),
                    [](ModelSpec& spec) { spec.num_experts_per_tok = 4; }),
       .edit = MakeBiasNegative});
  cases.push_back(
      {.name = "one_head", .spec = With(V3(40, 7 * 8 + 1), [](ModelSpec& spec) {
                             spec.num_attention_heads = 1;
                             spec.n_routed_experts = 4;
                             spec.n_group = 1;
                             spec.topk_group = 1;
                             spec.num_experts_per_tok = 4;
                           })});
  const auto mistral = [](ModelSpec& spec) {
    spec.architecture = "Mistral3ForConditionalGeneration";
    spec.model_type = "mistral4";
    spec.scoring_func = cluster::ScoringFunc::kSoftmax;
  };
  cases.push_back({.name = "softmax_router_normalised_and_scaled",
                   .spec = With(V3(40, 101), [&](ModelSpec& spec) {
                     mistral(spec);
                     spec.n_group = 1;
                     spec.topk_group = 1;
                     spec.num_experts_per_tok = 3;
                   })});
  cases.push_back({.name = "softmax_router_in_groups_without_bias",
                   .spec = With(V3(40, 101), mistral),
                   .seed = 2,
                   .lengths = {12}});
  cases.push_back({.name = "queries_scaled_by_position",
                   .spec = With(V3(40, 101),
                                [&](ModelSpec& spec) {
                                  mistral(spec);
                                  spec.num_hidden_layers = 2;
                                  spec.num_nextn_predict_layers = 0;
                                  spec.n_routed_experts = 0;
                                  spec.n_shared_experts = 0;
                                  spec.first_k_dense_replace = 0;
                                  cluster::YarnSpec& yarn = *spec.rope_scaling;
                                  yarn.truncate = false;
                                  yarn.attention_factor = 0.9;
                                  yarn.original_max_position_embeddings = 9;
                                  spec.query_scale = {
                                      .beta = 0.4,
                                      .original_max_position_embeddings = 9};
                                }),
                   .lengths = {8, 9, 40}});
  cases.push_back({.name = "heads_of_24_and_40_large_epsilon",
                   .spec = With(V3(56, 131),
                                [](ModelSpec& spec) {
                                  spec.num_attention_heads = 5;
                                  spec.qk_nope_head_dim = 24;
                                  spec.v_head_dim = 40;
                                  spec.rms_norm_eps = 1e-2;
                                }),
                   .lengths = {40}});
  cases.push_back({.name = "heads_of_192_and_256",
                   .spec = With(V3(56, 131),
                                [](ModelSpec& spec) {
                                  spec.num_hidden_layers = 2;
                                  spec.num_attention_heads = 3;
                                  spec.qk_nope_head_dim = 192;
                                  spec.qk_rope_head_dim = 64;
                                  spec.v_head_dim = 256;
                                }),
                   .lengths = {40}});
  cases.push_back({.name = "yarn_scales_cosines_over_block_borders",
                   .spec = With(V3(40, 101),
                                [](ModelSpec& spec) {
                                  spec.n_group = 1;
                                  spec.topk_group = 1;
                                  spec.num_hidden_layers = 2;
                                  spec.rope_scaling->factor = 8;
                                  spec.rope_scaling->mscale = 1;
                                  spec.rope_scaling->mscale_all_dim = 0.5;
                                }),
                   .seed = 2,
                   .lengths = {1, 127, 128, 129}});
  cases.push_back({.name = "yarn_without_mscale_all_dim_long_prompt",
                   .spec = With(V2(40, 101),
                                [](ModelSpec& spec) {
                                  spec.num_hidden_layers = 2;
                                  spec.n_group = 1;
                                  spec.topk_group = 1;
                                  spec.num_experts_per_tok = 2;
                                  spec.routed_scaling_factor = 1;
                                  spec.rope_scaling->mscale = 1;
                                  spec.rope_scaling->mscale_all_dim = 0;
                                }),
                   .lengths = {400}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, RandomModelTest,
                         ::testing::ValuesIn(RandomCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ringfleet::worker
