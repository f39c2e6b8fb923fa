// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/quantization_config.h"

#include <string>
#include <utility>
#include <vector>

#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/published_sizes.h"
#include "cluster/model/shard_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum TensorRole;

ModelSpec Int4Spec() {
  ModelSpec spec = testing::TinyV3Spec();
  spec.hidden_size = 64;
  spec.moe_intermediate_size = 96;
  spec.intermediate_size = 128;
  spec.v_head_dim = 32;
  spec.q_lora_rank = 64;
  spec.kv_lora_rank = 32;
  return spec;
}

// As Kimi-K2-Thinking has it.
Json Packed() {
  return Json::parse(R"({
    "config_groups": {"group_0": {
      "input_activations": null, "output_activations": null,
      "targets": ["Linear"],
      "weights": {"actorder": null, "block_structure": null, "dynamic": false,
        "group_size": 32, "num_bits": 4, "observer": "minmax",
        "observer_kwargs": {}, "strategy": "group", "symmetric": true,
        "type": "int"}}},
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
      "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": null, "quant_method": "compressed-tensors",
    "quantization_status": "compressed"})");
}

absl::Status ParseInto(const Json& json, ModelSpec* spec) {
  std::vector<std::string> unread;
  spec->quantization = {};
  spec->weight_block_rows = spec->weight_block_columns = 0;
  const absl::Status status = ParseQuantization(json, spec, &unread);
  if (status.ok()) {
    EXPECT_THAT(unread, IsEmpty());
  }
  return status;
}

std::string ProblemOf(const Json& json) {
  ModelSpec spec = Int4Spec();
  const absl::Status status = ParseInto(json, &spec);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << json << status;
  return std::string(status.message());
}

std::vector<TensorRole> Int4Roles(const Quantization& quantization, bool mtp) {
  std::vector<TensorRole> roles;
  for (int i = 0; i < 32; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (quantization.IsInt4(role, mtp)) roles.push_back(role);
  }
  return roles;
}

TEST(QuantizationConfigTest, IgnoreTellsWhichTensorsAreInt4) {
  ModelSpec spec = Int4Spec();
  ASSERT_TRUE(ParseInto(Packed(), &spec).ok());
  EXPECT_EQ(spec.quantization.method, QuantMethod::kInt4);
  for (const bool mtp : {false, true}) {
    EXPECT_THAT(Int4Roles(spec.quantization, mtp),
                ElementsAre(kExpertGate, kExpertUp, kExpertDown));
  }
  // Names with the prefix of a text model, and the layer of predictions.
  Json json = Packed();
  json["ignore"] = {"lm_head",
                    "re:.*self_attn\\.(q|kv|o).*",
                    "re:language_model\\.model\\.layers\\.3\\.",
                    "language_model.model.layers.0.mlp.gate_proj",
                    "model.layers.0.mlp.up_proj",
                    "model.layers.0.mlp.down_proj"};
  ASSERT_TRUE(ParseInto(json, &spec).ok());
  EXPECT_THAT(Int4Roles(spec.quantization, false),
              ElementsAre(kExpertGate, kExpertUp, kExpertDown, kSharedGate,
                          kSharedUp, kSharedDown));
  EXPECT_THAT(Int4Roles(spec.quantization, true), IsEmpty());
  // Targets by name.
  json["config_groups"]["group_0"]["targets"] = {"re:.*\\.experts\\..*"};
  json.erase("ignore");
  ASSERT_TRUE(ParseInto(json, &spec).ok());
  EXPECT_THAT(Int4Roles(spec.quantization, false),
              ElementsAre(kExpertGate, kExpertUp, kExpertDown));
}

TEST(QuantizationConfigTest, TensorsOfOneFormMustBeAlike) {
  Json json = Packed();
  json["ignore"].push_back("re:.*experts.*up_proj");
  EXPECT_THAT(ProblemOf(json),
              AllOf(HasSubstr("quantization_config.ignore: has "),
                    HasSubstr("experts.0.up_proj.weight, but not "),
                    HasSubstr("want both or neither")));
  json = Packed();
  json["ignore"].push_back("re:.*layers.2.*");
  EXPECT_THAT(ProblemOf(json),
              AllOf(HasSubstr("has model.layers.2.mlp.experts.0.gate_proj"),
                    HasSubstr("not model.layers.1.mlp.experts.0.gate_proj")));
}

TEST(QuantizationConfigTest, WhatIsNotImplementedIsRefusedByKeyAndValue) {
  const std::string weights = "/config_groups/group_0/weights/";
  for (const auto& [pointer, value] : std::vector<std::pair<std::string, Json>>{
           {"/format", "nvfp4-pack-quantized"},
           {"/format", "int-quantized"},
           {"/format", nullptr},
           {"/kv_cache_scheme", {{"num_bits", 8}}},
           {"/sparsity_config", {{"format", "sparse-24-bitmask"}}},
           {"/transform_config", {{"config_groups", Json::object()}}},
           {"/config_groups", nullptr},
           {"/config_groups", Json::object()},
           {"/config_groups/group_1", Json::object()},
           {"/config_groups/group_0", 7},
           {"/config_groups/group_0/input_activations", {{"num_bits", 8}}},
           {"/config_groups/group_0/output_activations", {{"num_bits", 8}}},
           {"/config_groups/group_0/format", "float-quantized"},
           {"/config_groups/group_0/targets", 5},
           {"/config_groups/group_0/weights", nullptr},
           {weights + "num_bits", 8},
           {weights + "group_size", 128},
           {weights + "group_size", nullptr},
           {weights + "symmetric", false},
           {weights + "strategy", "channel"},
           {weights + "type", "float"},
           {weights + "actorder", "group"},
           {weights + "actorder", true},
           {weights + "dynamic", true},
           {weights + "block_structure", "128x128"},
           {weights + "zp_dtype", "torch.int8"},
           {"/ignore", "lm_head"},
           {"/ignore", Json::array({7})},
           {"/ignore", Json::array({"re:" + std::string(100000, '(')})},
           {"/ignore", Json::array({"re:(["})}}) {
    Json json = Packed();
    json[Json::json_pointer(pointer)] = value;
    std::string key = pointer.substr(1);
    for (char& c : key) c = c == '/' ? '.' : c;
    if (key.rfind("config_groups.group_1", 0) == 0 ||
        key == "config_groups.group_0") {
      key = "config_groups";
    }
    const std::string problem = ProblemOf(json);
    EXPECT_THAT(problem, AllOf(HasSubstr("config.json: quantization_config." +
                                         key + ": "),
                               HasSubstr("want ")))
        << pointer << " " << value;
    if (value.is_primitive() && !value.is_null() && key != "config_groups") {
      EXPECT_THAT(problem, HasSubstr(value.dump()));
    }
  }
  for (const char* method : {"awq", "gptq", "modelopt", "mxfp4", ""}) {
    EXPECT_THAT(ProblemOf({{"quant_method", method}}),
                AllOf(HasSubstr("quant_method: \"" + std::string(method)),
                      HasSubstr("want \"fp8\"")));
  }
  EXPECT_THAT(ProblemOf({{"quant_method", "blockwise_int8"}}),
              HasSubstr("weight_block_size: missing"));
  EXPECT_THAT(ProblemOf({{"quant_method", "w8a8_int8"},
                         {"weight_block_size", {128, 128}}}),
              HasSubstr("weight_block_size: [128,128], want null"));
}

TEST(QuantizationConfigTest, UnknownMembersAreToldAsUnread) {
  Json json = Packed();
  json["new_global"] = 1;
  json["config_groups"]["group_0"]["new_group"] = 2;
  json["config_groups"]["group_0"]["weights"]["new_weights"] = 3;
  ModelSpec spec = Int4Spec();
  std::vector<std::string> unread;
  ASSERT_TRUE(ParseQuantization(json, &spec, &unread).ok());
  EXPECT_THAT(
      unread,
      ElementsAre(
          "quantization_config.config_groups.group_0.new_group",
          "quantization_config.config_groups.group_0.weights.new_weights",
          "quantization_config.new_global"));
}

TEST(QuantizationConfigTest, Int4NeedsWholeGroups) {
  ModelSpec spec = Int4Spec();
  spec.moe_intermediate_size = 100;
  EXPECT_EQ(ParseInto(Packed(), &spec).message(),
            "config.json: quantization_config: int4 tensor "
            "model.layers.1.mlp.experts.0.down_proj.weight has 100 inputs, "
            "want a multiple of 32, the group_size");
  spec = Int4Spec();
  spec.v_head_dim = 48;
  Json json = Packed();
  EXPECT_TRUE(ParseInto(json, &spec).ok());
  json["ignore"] = {"lm_head"};
  EXPECT_THAT(std::string(ParseInto(json, &spec).message()),
              HasSubstr("o_proj.weight has 48 inputs of each head"));
}

TEST(QuantizationConfigTest, Fp8AndInt8NameTheirBlocks) {
  ModelSpec spec = Int4Spec();
  ASSERT_TRUE(ParseInto({{"quant_method", "fp8"},
                         {"activation_scheme", "static"},
                         {"weight_block_size", nullptr},
                         {"modules_to_not_convert", {"lm_head"}}},
                        &spec)
                  .ok());
  EXPECT_EQ(spec.quantization.method, QuantMethod::kFp8);
  EXPECT_EQ(spec.weight_block_rows, 0);
  ASSERT_TRUE(ParseInto({{"quant_method", "w8a8_int8"}}, &spec).ok());
  EXPECT_EQ(spec.quantization.method, QuantMethod::kInt8Channel);
  ASSERT_TRUE(ParseInto({{"quant_method", "blockwise_int8"},
                         {"weight_block_size", {64u, 32u}}},
                        &spec)
                  .ok());
  EXPECT_EQ(spec.quantization.method, QuantMethod::kInt8Blocks);
  EXPECT_EQ(spec.weight_block_rows, 64);
  EXPECT_EQ(spec.weight_block_columns, 32);
}

// 96 columns are three groups of 32.
TEST(QuantizationConfigTest, Int4ColumnsAreSplitBetweenGroups) {
  ModelSpec spec = Int4Spec();
  ASSERT_TRUE(ParseInto(Packed(), &spec).ok());
  for (const int ranks : {1, 2, 3, 4, 5}) {
    int end = 0;
    for (const ShardPlan& plan : PlanAllShards(spec, {.tensor = ranks})) {
      EXPECT_EQ(plan.expert_columns.begin, end);
      EXPECT_EQ(plan.expert_columns.begin % 32, 0);
      EXPECT_LE(plan.expert_columns.size(), ranks == 1 ? 96 : 64);
      end = plan.expert_columns.end;
      // The shared expert is no int4.
      EXPECT_EQ(plan.shared_columns, SplitRange(96, ranks, plan.rank));
    }
    EXPECT_EQ(end, 96);
  }
}

TEST(QuantizationConfigTest, PublishedSizesCountCodesAndScales) {
  ModelSpec spec = Int4Spec();
  ASSERT_TRUE(ParseInto(Packed(), &spec).ok());
  spec.num_nextn_predict_layers = 0;
  const CheckpointSizes sizes = PublishedSizes(spec);
  const uint64_t elements = 2ull * 8 * 3 * 96 * 64;  // Two layers of 8 experts.
  EXPECT_EQ(sizes.bytes[static_cast<int>(WeightClass::kRoutedExperts)],
            elements / 2 + elements / 32 * 2 + 2 * 8 * 3 * 8);
  EXPECT_EQ(sizes.scales, elements / 32);
}

}  // namespace
}  // namespace ringfleet::cluster
