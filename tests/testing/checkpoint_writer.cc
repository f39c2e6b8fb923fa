// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"

namespace ringfleet::testing {
namespace {

using cluster::ModelSpec;
using kernels::Dtype;

// The code whose value is nearest; ties to the even code.
uint8_t NearestF8(float value) {
  const float magnitude = std::min(std::abs(value), 448.0f);
  int low = 0, high = 0x7e;  // Values of codes 0 .. 0x7e increase.
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (kernels::F8E4M3ToFloat(middle) <= magnitude ? low : high) = middle;
  }
  const float below = magnitude - kernels::F8E4M3ToFloat(low);
  const float above = kernels::F8E4M3ToFloat(high) - magnitude;
  const int code =
      below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

// By search in the widened values; only tests use it, so speed is no matter.
uint16_t NearestF16(float value) {
  const float magnitude = std::abs(value);
  int low = 0, high = 0x7bff;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (kernels::F16ToFloat(middle) <= magnitude ? low : high) = middle;
  }
  const float below = magnitude - kernels::F16ToFloat(low);
  const float above = kernels::F16ToFloat(high) - magnitude;
  const int code =
      below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<uint16_t>(code | (std::signbit(value) ? 0x8000 : 0));
}

class RandomModel {
 public:
  RandomModel(const ModelSpec& spec, Dtype dtype, uint64_t seed)
      : spec_(spec), dtype_(dtype), random_(seed) {
    RF_CHECK(dtype != Dtype::kF8E4M3 || spec.weight_block_rows > 0);
  }

  std::vector<TestTensor> Make() {
    const int hidden = spec_.hidden_size;
    const std::vector<float> embedding = Uniform(spec_.vocab_size, hidden, 1);
    const std::vector<float> head =
        spec_.tie_word_embeddings
            ? embedding
            : Uniform(spec_.vocab_size, hidden, 1 / std::sqrt(float(hidden)));
    const std::vector<int64_t> table = {spec_.vocab_size, hidden};
    Add("model.embed_tokens.weight", Dtype::kBf16, table, embedding);
    if (!spec_.tie_word_embeddings) {
      Add("lm_head.weight", Dtype::kBf16, table, head);
    }
    Norm("model.norm.weight", hidden);
    for (int i = 0; i < spec_.num_hidden_layers; ++i) {
      Layer(absl::StrCat("model.layers.", i, "."), spec_.IsMoeLayer(i));
    }
    if (spec_.num_nextn_predict_layers > 0) {
      const std::string prefix =
          absl::StrCat("model.layers.", spec_.num_hidden_layers, ".");
      Layer(prefix, /*is_moe=*/true);
      Norm(prefix + "enorm.weight", hidden);
      Norm(prefix + "hnorm.weight", hidden);
      Norm(prefix + "shared_head.norm.weight", hidden);
      Plain(prefix + "eh_proj.weight", hidden, 2 * hidden);
      Add(prefix + "embed_tokens.weight", Dtype::kBf16, table, embedding);
      Add(prefix + "shared_head.head.weight", Dtype::kBf16, table, head);
    }
    return std::move(tensors_);
  }

 private:
  // Uniform with the given standard deviation.
  std::vector<float> Uniform(int64_t rows, int64_t columns, float deviation) {
    const float bound = deviation * std::sqrt(3.0f);
    std::vector<float> values(rows * columns);
    for (float& value : values) {
      const float unit = static_cast<float>(random_() >> 40) / (1 << 24);
      value = bound * (2 * unit - 1);
    }
    return values;
  }

  void Add(std::string name, Dtype dtype, std::vector<int64_t> shape,
           const std::vector<float>& values) {
    tensors_.push_back(
        MakeTensor(std::move(name), dtype, std::move(shape), values));
  }

  void Norm(const std::string& name, int size) {
    std::vector<float> values = Uniform(1, size, 0.1f);
    for (float& value : values) value += 1;
    Add(name, Dtype::kBf16, {size}, values);
  }

  void Plain(const std::string& name, int64_t rows, int64_t columns) {
    Add(name, Dtype::kBf16, {rows, columns},
        Uniform(rows, columns, 1 / std::sqrt(float(columns))));
  }

  void Product(const std::string& name, int64_t rows, int64_t columns) {
    std::vector<float> values =
        Uniform(rows, columns, 1 / std::sqrt(float(columns)));
    if (dtype_ != Dtype::kF8E4M3) {
      Add(name, dtype_, {rows, columns}, values);
      return;
    }
    const int64_t block_rows = spec_.weight_block_rows;
    const int64_t block_columns = spec_.weight_block_columns;
    const int64_t scale_rows = (rows + block_rows - 1) / block_rows;
    const int64_t scale_columns = (columns + block_columns - 1) / block_columns;
    std::vector<float> scales(scale_rows * scale_columns, 0);
    const auto scale_of = [&](int64_t i, int64_t j) -> float& {
      return scales[i / block_rows * scale_columns + j / block_columns];
    };
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        float& scale = scale_of(i, j);
        scale = std::max(scale, std::abs(values[i * columns + j]) / 448);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        values[i * columns + j] /= scale_of(i, j);
      }
    }
    Add(name, Dtype::kF8E4M3, {rows, columns}, values);
    Add(name + "_scale_inv", Dtype::kF32, {scale_rows, scale_columns}, scales);
  }

  void Mlp(const std::string& prefix, int width) {
    Product(prefix + "gate_proj.weight", width, spec_.hidden_size);
    Product(prefix + "up_proj.weight", width, spec_.hidden_size);
    Product(prefix + "down_proj.weight", spec_.hidden_size, width);
  }

  void Layer(const std::string& prefix, bool is_moe) {
    const int hidden = spec_.hidden_size;
    const int heads = spec_.num_attention_heads;
    Norm(prefix + "input_layernorm.weight", hidden);
    Norm(prefix + "post_attention_layernorm.weight", hidden);
    const std::string attention = prefix + "self_attn.";
    if (spec_.q_lora_rank > 0) {
      Product(attention + "q_a_proj.weight", spec_.q_lora_rank, hidden);
      Norm(attention + "q_a_layernorm.weight", spec_.q_lora_rank);
      Product(attention + "q_b_proj.weight", heads * spec_.qk_head_dim(),
              spec_.q_lora_rank);
    } else {
      Product(attention + "q_proj.weight", heads * spec_.qk_head_dim(), hidden);
    }
    Product(attention + "kv_a_proj_with_mqa.weight", spec_.cache_row(), hidden);
    Norm(attention + "kv_a_layernorm.weight", spec_.kv_lora_rank);
    Product(attention + "kv_b_proj.weight",
            heads * (spec_.qk_nope_head_dim + spec_.v_head_dim),
            spec_.kv_lora_rank);
    Product(attention + "o_proj.weight", hidden, heads * spec_.v_head_dim);
    if (!is_moe) {
      Mlp(prefix + "mlp.", spec_.intermediate_size);
      return;
    }
    Plain(prefix + "mlp.gate.weight", spec_.n_routed_experts, hidden);
    if (spec_.has_router_bias()) {
      Add(prefix + "mlp.gate.e_score_correction_bias", Dtype::kF32,
          {spec_.n_routed_experts}, Uniform(1, spec_.n_routed_experts, 0.1f));
    }
    for (int e = 0; e < spec_.n_routed_experts; ++e) {
      Mlp(absl::StrCat(prefix, "mlp.experts.", e, "."),
          spec_.moe_intermediate_size);
    }
    if (spec_.n_shared_experts > 0) {
      Mlp(prefix + "mlp.shared_experts.",
          spec_.n_shared_experts * spec_.moe_intermediate_size);
    }
  }

  const ModelSpec& spec_;
  const Dtype dtype_;
  std::mt19937_64 random_;
  std::vector<TestTensor> tensors_;
};

const char* HeaderDtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "F32";
    case Dtype::kBf16:
      return "BF16";
    case Dtype::kF16:
      return "F16";
    case Dtype::kF8E4M3:
      return "F8_E4M3";
    case Dtype::kInt8:
      return "I8";
    case Dtype::kF8E8M0:
      return "F8_E8M0";
    case Dtype::kInt32:
      return "I32";
    case Dtype::kInt64:
      return "I64";
  }
  RF_CHECK(false);
}

}  // namespace

TempDir::TempDir() {
  std::string name =
      (std::filesystem::temp_directory_path() / "ringfleet_test_XXXXXX")
          .string();
  RF_CHECK(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::File(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

void WriteFile(const std::string& path, absl::string_view content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  RF_CHECK(file.good());
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  RF_CHECK(file.good());
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

void FlipByte(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  RF_CHECK(file.good());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  RF_CHECK(file.good());
}

TestTensor MakeTensor(std::string name, Dtype dtype, std::vector<int64_t> shape,
                      const std::vector<float>& values) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  RF_CHECK(count == static_cast<int64_t>(values.size()));
  const size_t element = kernels::DtypeBytes(dtype);
  std::string data(values.size() * element, '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    char* out = data.data() + i * element;
    switch (dtype) {
      case Dtype::kF32:
        std::memcpy(out, &values[i], element);
        break;
      case Dtype::kBf16: {
        const uint16_t bits = kernels::FloatToBf16(values[i]);
        std::memcpy(out, &bits, element);
        break;
      }
      case Dtype::kF16: {
        const uint16_t bits = NearestF16(values[i]);
        std::memcpy(out, &bits, element);
        break;
      }
      case Dtype::kF8E4M3:
        *out = static_cast<char>(NearestF8(values[i]));
        break;
      case Dtype::kInt8:
        *out = static_cast<char>(static_cast<int8_t>(values[i]));
        break;
      case Dtype::kF8E8M0:
        *out = static_cast<char>(std::ilogb(values[i]) + 127);
        break;
      case Dtype::kInt32: {
        const auto integer = static_cast<int32_t>(values[i]);
        std::memcpy(out, &integer, element);
        break;
      }
      case Dtype::kInt64: {
        const auto integer = static_cast<int64_t>(values[i]);
        std::memcpy(out, &integer, element);
        break;
      }
    }
  }
  return {std::move(name), HeaderDtype(dtype), std::move(shape),
          std::move(data)};
}

std::string RawSafetensors(absl::string_view header, absl::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(
        static_cast<uint64_t>(header.size()) >> (8 * i) & 0xff));
  }
  absl::StrAppend(&bytes, header, data);
  return bytes;
}

std::string SafetensorsBytes(const std::vector<TestTensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"]["format"] = "pt";
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.data;
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
  }
  return RawSafetensors(header.dump(), data);
}

void WriteCheckpoint(const std::string& dir, absl::string_view config_json,
                     const std::vector<TestTensor>& tensors, int num_files) {
  WriteFile(absl::StrCat(dir, "/config.json"), config_json);
  if (num_files == 1) {
    WriteFile(absl::StrCat(dir, "/model.safetensors"),
              SafetensorsBytes(tensors));
    return;
  }
  std::vector<std::vector<TestTensor>> files(num_files);
  nlohmann::json index;
  const auto file_name = [&](size_t i) {
    return absl::StrCat("model-", i + 1, "-of-", num_files, ".safetensors");
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    files[i % num_files].push_back(tensors[i]);
    index["weight_map"][tensors[i].name] = file_name(i % num_files);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    WriteFile(absl::StrCat(dir, "/", file_name(i)), SafetensorsBytes(files[i]));
  }
  WriteFile(absl::StrCat(dir, "/model.safetensors.index.json"), index.dump());
}

namespace {

nlohmann::json QuantizationJson(const ModelSpec& spec) {
  using cluster::QuantMethod;
  nlohmann::json json = {{"activation_scheme", "dynamic"}};
  if (spec.weight_block_rows > 0) {
    json["weight_block_size"] = {spec.weight_block_rows,
                                 spec.weight_block_columns};
  }
  switch (spec.quantization.method) {
    case QuantMethod::kNone:
      break;
    case QuantMethod::kFp8:
      json["quant_method"] = "fp8";
      json["fmt"] = "e4m3";
      break;
    case QuantMethod::kInt8Channel:
      json["quant_method"] = "w8a8_int8";
      break;
    case QuantMethod::kInt8Blocks:
      json["quant_method"] = "blockwise_int8";
      break;
    case QuantMethod::kInt4:  // Routed experts.
      return {{"quant_method", "compressed-tensors"},
              {"format", "pack-quantized"},
              {"ignore",
               {"lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|down)_proj.*"}},
              {"config_groups",
               {{"group_0",
                 {{"targets", {"Linear"}},
                  {"weights",
                   {{"num_bits", 4},
                    {"type", "int"},
                    {"symmetric", true},
                    {"strategy", "group"},
                    {"group_size", 32}}}}}}}};
  }
  return json;
}

}  // namespace

std::string ConfigJson(const ModelSpec& spec) {
  nlohmann::json json = {
      {"architectures", {spec.architecture}},
      {"model_type", spec.model_type},
      {"attention_bias", false},
      {"first_k_dense_replace", spec.first_k_dense_replace},
      {"hidden_act", "silu"},
      {"hidden_size", spec.hidden_size},
      {"intermediate_size", spec.intermediate_size},
      {"kv_lora_rank", spec.kv_lora_rank},
      {"max_position_embeddings", spec.max_position_embeddings},
      {"moe_layer_freq", spec.moe_layer_freq},
      {"norm_topk_prob", spec.norm_topk_prob},
      {"num_attention_heads", spec.num_attention_heads},
      {"num_hidden_layers", spec.num_hidden_layers},
      {"num_nextn_predict_layers", spec.num_nextn_predict_layers},
      {"qk_nope_head_dim", spec.qk_nope_head_dim},
      {"qk_rope_head_dim", spec.qk_rope_head_dim},
      {"rms_norm_eps", spec.rms_norm_eps},
      {"rope_theta", spec.rope_theta},
      {"routed_scaling_factor", spec.routed_scaling_factor},
      {"tie_word_embeddings", spec.tie_word_embeddings},
      {"torch_dtype", "bfloat16"},
      {"v_head_dim", spec.v_head_dim},
      {"vocab_size", spec.vocab_size},
      {"eos_token_id", spec.eos_token_ids},
      {"n_routed_experts", nullptr},
      {"q_lora_rank", nullptr},
      {"rope_scaling", nullptr},
      {"bos_token_id", nullptr},
  };
  if (spec.q_lora_rank > 0) json["q_lora_rank"] = spec.q_lora_rank;
  if (spec.bos_token_id.has_value()) json["bos_token_id"] = *spec.bos_token_id;
  if (spec.n_routed_experts > 0) {
    json["n_routed_experts"] = spec.n_routed_experts;
    json["n_shared_experts"] = spec.n_shared_experts;
    json["moe_intermediate_size"] = spec.moe_intermediate_size;
    json["num_experts_per_tok"] = spec.num_experts_per_tok;
    json["n_group"] = spec.n_group;
    json["topk_group"] = spec.topk_group;
    json["scoring_func"] = spec.scoring_func == cluster::ScoringFunc::kSigmoid
                               ? "sigmoid"
                               : "softmax";
    json["topk_method"] = spec.topk_method == cluster::TopkMethod::kNoauxTc
                              ? "noaux_tc"
                          : spec.topk_method == cluster::TopkMethod::kGreedy
                              ? "greedy"
                              : "group_limited_greedy";
  }
  if (spec.rope_scaling.has_value()) {
    const cluster::YarnSpec& yarn = *spec.rope_scaling;
    json["rope_scaling"] = {{"type", "yarn"},
                            {"factor", yarn.factor},
                            {"original_max_position_embeddings",
                             yarn.original_max_position_embeddings},
                            {"beta_fast", yarn.beta_fast},
                            {"beta_slow", yarn.beta_slow},
                            {"mscale", yarn.mscale},
                            {"mscale_all_dim", yarn.mscale_all_dim}};
    nlohmann::json& rope = json["rope_scaling"];
    if (yarn.attention_factor.has_value()) {
      rope["attention_factor"] = *yarn.attention_factor;
    }
    if (!yarn.truncate) rope["truncate"] = false;
    if (spec.query_scale.has_value()) {
      rope["llama_4_scaling_beta"] = spec.query_scale->beta;
    }
  }
  if (spec.quantization.method != cluster::QuantMethod::kNone) {
    json["quantization_config"] = QuantizationJson(spec);
  }
  return json.dump(2);
}

ModelSpec TinyV3Spec() {
  ModelSpec spec;
  spec.architecture = "DeepseekV3ForCausalLM";
  spec.model_type = "deepseek_v3";
  spec.vocab_size = 101;
  spec.hidden_size = 40;
  spec.num_hidden_layers = 3;
  spec.num_attention_heads = 6;
  spec.q_lora_rank = 24;
  spec.kv_lora_rank = 20;
  spec.qk_nope_head_dim = 12;
  spec.qk_rope_head_dim = 8;
  spec.v_head_dim = 10;
  spec.intermediate_size = 72;
  spec.moe_intermediate_size = 28;
  spec.n_routed_experts = 8;
  spec.n_shared_experts = 1;
  spec.num_experts_per_tok = 3;
  spec.first_k_dense_replace = 1;
  spec.scoring_func = cluster::ScoringFunc::kSigmoid;
  spec.topk_method = cluster::TopkMethod::kNoauxTc;
  spec.n_group = 4;
  spec.topk_group = 2;
  spec.norm_topk_prob = true;
  spec.routed_scaling_factor = 2.5;
  spec.rope_scaling = cluster::YarnSpec{.factor = 4,
                                        .original_max_position_embeddings = 64,
                                        .mscale = 1,
                                        .mscale_all_dim = 1};
  spec.max_position_embeddings = 256;
  spec.num_nextn_predict_layers = 1;
  spec.quantization.method = cluster::QuantMethod::kFp8;
  spec.weight_block_rows = 16;
  spec.weight_block_columns = 16;
  spec.bos_token_id = 0;
  spec.eos_token_ids = {1};
  return spec;
}

ModelSpec TinyV2Spec() {
  ModelSpec spec = TinyV3Spec();
  spec.architecture = "DeepseekV2ForCausalLM";
  spec.model_type = "deepseek_v2";
  spec.n_shared_experts = 2;
  spec.scoring_func = cluster::ScoringFunc::kSoftmax;
  spec.topk_method = cluster::TopkMethod::kGroupLimitedGreedy;
  spec.norm_topk_prob = false;
  spec.routed_scaling_factor = 16;
  spec.rope_scaling->mscale = 0.707;
  spec.rope_scaling->mscale_all_dim = 0.707;
  spec.num_nextn_predict_layers = 0;
  spec.quantization.method = cluster::QuantMethod::kNone;
  spec.weight_block_rows = 0;
  spec.weight_block_columns = 0;
  return spec;
}

ModelSpec TinyV2LiteSpec() {
  ModelSpec spec = TinyV2Spec();
  spec.q_lora_rank = 0;
  spec.topk_method = cluster::TopkMethod::kGreedy;
  spec.n_group = 1;
  spec.topk_group = 1;
  spec.routed_scaling_factor = 1;
  return spec;
}

std::vector<TestTensor> RandomTensors(const ModelSpec& spec, Dtype dtype,
                                      uint64_t seed) {
  return RandomModel(spec, dtype, seed).Make();
}

void WriteRandomModel(const std::string& dir, const ModelSpec& spec,
                      Dtype dtype, uint64_t seed, int num_files) {
  WriteCheckpoint(dir, ConfigJson(spec), RandomTensors(spec, dtype, seed),
                  num_files);
}

void WriteHollowModel(const std::string& dir, const ModelSpec& spec) {
  const int64_t bytes = int64_t{2} * spec.vocab_size * spec.hidden_size;
  const nlohmann::json header = {
      {"model.embed_tokens.weight",
       {{"dtype", "BF16"},
        {"shape", {spec.vocab_size, spec.hidden_size}},
        {"data_offsets", {0, bytes}}}}};
  const std::string path = dir + "/model.safetensors";
  WriteFile(path, RawSafetensors(header.dump(), ""));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + bytes);
  WriteFile(dir + "/config.json", ConfigJson(spec));
}

}  // namespace ringfleet::testing
