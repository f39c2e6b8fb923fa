// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/isa.h"
#include "kernels/products/quantize.h"

namespace ringfleet::testing {
namespace {

using cluster::ModelSpec;
using cluster::YarnSpec;
using kernels::WeightForm;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void Add(const Vector& summand, double factor, Vector& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * summand[i];
}

void Append(const Vector& values, Vector& all) {
  all.insert(all.end(), values.begin(), values.end());
}

// YaRN's attention factor m(a), arXiv:2309.00071, equation 22, in DeepSeek's
// parameters.
double AttentionFactor(const YarnSpec& yarn, double a) {
  return yarn.factor <= 1 ? 1 : 0.1 * a * std::log(yarn.factor) + 1;
}

double SoftmaxScale(const ModelSpec& spec) {
  const double scale = 1 / std::sqrt(static_cast<double>(spec.qk_head_dim()));
  if (!spec.rope_scaling.has_value() || !spec.rope_scaling->scales_softmax) {
    return scale;
  }
  const double m =
      AttentionFactor(*spec.rope_scaling, spec.rope_scaling->mscale_all_dim);
  return scale * m * m;
}

// Radians per position of rotation pair j.
double Frequency(const ModelSpec& spec, int j) {
  const double dim = spec.qk_rope_head_dim;
  const double base = std::pow(spec.rope_theta, -2.0 * j / dim);
  if (!spec.rope_scaling.has_value()) return base;
  const YarnSpec& yarn = *spec.rope_scaling;
  // The dimension that turns `rotations` times over the original context.
  const auto dimension = [&](double rotations) {
    return dim *
           std::log(yarn.original_max_position_embeddings /
                    (2 * std::numbers::pi * rotations)) /
           (2 * std::log(spec.rope_theta));
  };
  const auto whole = [&](double x, double rounded) {
    return yarn.truncate ? rounded : x;
  };
  const double fast = dimension(yarn.beta_fast);
  const double slow = dimension(yarn.beta_slow);
  const double low = std::max(whole(fast, std::floor(fast)), 0.0);
  double high = std::min(whole(slow, std::ceil(slow)), dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((j - low) / (high - low), 0.0, 1.0);
  return base * (1 - ramp) + base / yarn.factor * ramp;
}

// Rotates pairs (0, 1), (2, 3), ... of x[first, first + qk_rope_head_dim).
void Rotate(const ModelSpec& spec, size_t position, size_t first, Vector& x) {
  double magnitude = 1;
  if (spec.rope_scaling.has_value()) {
    const YarnSpec& yarn = *spec.rope_scaling;
    magnitude = AttentionFactor(yarn, yarn.mscale) /
                AttentionFactor(yarn, yarn.mscale_all_dim);
    if (yarn.attention_factor.has_value()) magnitude = *yarn.attention_factor;
  }
  for (int j = 0; j < spec.qk_rope_head_dim / 2; ++j) {
    const double angle = static_cast<double>(position) * Frequency(spec, j);
    const double cosine = magnitude * std::cos(angle);
    const double sine = magnitude * std::sin(angle);
    double& even = x[first + 2 * j];
    double& odd = x[first + 2 * j + 1];
    const double old_even = even;
    even = old_even * cosine - odd * sine;
    odd = odd * cosine + old_even * sine;
  }
}

void Softmax(Vector& values) {
  const double max = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - max);
  for (double& value : values) value /= sum;
}

double LogSumExp(const Vector& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

// The `count` highest among `indices`, lower index first on ties. Lowers `gap`
// to the distance between the last one chosen and the first one left out.
std::vector<int> Highest(const Vector& scores, std::vector<int> indices,
                         size_t count, double& gap) {
  std::stable_sort(indices.begin(), indices.end(),
                   [&](int a, int b) { return scores[a] > scores[b]; });
  RF_CHECK(indices.size() >= count);
  if (indices.size() > count) {
    gap = std::min(gap, scores[indices[count - 1]] - scores[indices[count]]);
  }
  indices.resize(count);
  return indices;
}

void RoundToBf16(Vector& values) {
  for (double& value : values) {
    value = kernels::RoundToBf16(static_cast<float>(value));
  }
}

// In groups of so many, the last of which may be shorter.
void RoundToInt8(size_t group, Vector& values) {
  const std::vector<float> floats(values.begin(), values.end());
  std::vector<int8_t> codes(group);
  for (size_t first = 0; first < values.size(); first += group) {
    const size_t count = std::min(group, values.size() - first);
    const double scale =
        kernels::QuantizeInt8(floats.data() + first, count, codes.data());
    for (size_t i = 0; i < count; ++i) values[first + i] = codes[i] * scale;
  }
}

void RoundToInt4(Vector& values) {
  constexpr size_t kGroup = kernels::kInt4Group;
  const std::vector<float> floats(values.begin(), values.end());
  uint8_t codes[kGroup];
  for (size_t first = 0; first < values.size(); first += kGroup) {
    const size_t count = std::min(kGroup, values.size() - first);
    const double scale =
        kernels::QuantizeInt4(floats.data() + first, count, codes);
    for (size_t i = 0; i < count; ++i) {
      values[first + i] = (codes[i] - 8) * scale;
    }
  }
}

// One output's weights.
void RoundWeights(WeightForm form, Vector& values) {
  switch (form) {
    case WeightForm::kF32:
    case WeightForm::kF32Rows:
    case WeightForm::kReference:
      return;
    case WeightForm::kBf16:
    case WeightForm::kBf16Rows:
      return RoundToBf16(values);
    case WeightForm::kInt8:
      return RoundToInt8(values.size(), values);
    case WeightForm::kInt4:
      return RoundToInt4(values);
  }
}

Vector RoundedInput(WeightForm form, Vector values) {
  if (form == WeightForm::kInt8 || form == WeightForm::kInt4) {
    RoundToInt8(kernels::kActivationGroup, values);
  }
  return values;
}

constexpr size_t kLanes = 8;
using Lanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;

Vector Multiply(const Vector& weight, const Vector& x) {
  RF_CHECK(weight.size() % x.size() == 0);
  Vector y(weight.size() / x.size());
  for (size_t row = 0; row < y.size(); ++row) {
    const double* w = weight.data() + row * x.size();
    Lanes sums = {};  // Independent ones, for speed.
    size_t i = 0;
    for (; i + kLanes <= x.size(); i += kLanes) {
      Lanes a, b;
      std::memcpy(&a, w + i, sizeof(a));
      std::memcpy(&b, x.data() + i, sizeof(b));
      sums += a * b;
    }
    for (size_t lane = 0; lane < kLanes; ++lane) y[row] += sums[lane];
    for (; i < x.size(); ++i) y[row] += w[i] * x[i];
  }
  return y;
}

std::vector<int> Iota(int count) {
  std::vector<int> indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

}  // namespace

double LogProbability(const Vector& logits, uint32_t id) {
  return logits[id] - LogSumExp(logits);
}

double KlDivergence(const Vector& reference, const Vector& logits) {
  RF_CHECK(reference.size() == logits.size());
  const double p_total = LogSumExp(reference), q_total = LogSumExp(logits);
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - p_total;
    sum += std::exp(log_p) * (log_p - (logits[i] - q_total));
  }
  return sum;
}

ReferenceModel::ReferenceModel(const std::string& model_dir, WeightForm form,
                               bool absorbs)
    : form_(form), absorbs_(absorbs) {
  auto spec = cluster::LoadModelSpec(model_dir);
  RF_CHECK(spec.ok());
  spec_ = *std::move(spec);
  auto checkpoint = cluster::OpenCheckpoint(model_dir);
  RF_CHECK(checkpoint.ok());
  checkpoint_ = *std::move(checkpoint);
}

Vector ReferenceModel::Read(const cluster::TensorInfo& info) const {
  std::string bytes(info.bytes, '\0');
  RF_CHECK(checkpoint_->Read(info, 0, bytes.size(), bytes.data()).ok());
  const size_t count = bytes.size() / kernels::DtypeBytes(info.dtype);
  std::vector<float> values(count);
  kernels::ToFloat(info.dtype, bytes.data(), count, values.data());
  return Vector(values.begin(), values.end());
}

const Vector& ReferenceModel::Tensor(const std::string& name) {
  const auto [entry, inserted] = tensors_.try_emplace(name);
  Vector& values = entry->second;
  if (!inserted) return values;
  const auto info = checkpoint_->Find(name);
  RF_CHECK(info.ok());
  values = Read(**info);
  if ((*info)->dtype != kernels::Dtype::kF8E4M3) return values;
  const auto scale_info = checkpoint_->Find(name + "_scale_inv");
  RF_CHECK(scale_info.ok());
  const Vector scales = Read(**scale_info);
  const size_t columns = (*info)->shape[1];
  const size_t scale_columns = (*scale_info)->shape[1];
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t block_row = i / columns / spec_.weight_block_rows;
    const size_t block_column = i % columns / spec_.weight_block_columns;
    values[i] *= scales[block_row * scale_columns + block_column];
  }
  return values;
}

const Vector& ReferenceModel::RoundedTensor(const std::string& name,
                                            size_t columns) {
  const Vector& exact = Tensor(name);
  if (form_ == WeightForm::kF32) return exact;
  const auto [entry, inserted] = rounded_.try_emplace(name);
  Vector& values = entry->second;
  if (!inserted) return values;
  RF_CHECK(exact.size() % columns == 0);
  for (auto row = exact.begin(); row != exact.end(); row += columns) {
    Vector weights(row, row + columns);
    RoundWeights(form_, weights);
    values.insert(values.end(), weights.begin(), weights.end());
  }
  return values;
}

Vector ReferenceModel::Product(const std::string& name, const Vector& x) {
  return Multiply(RoundedTensor(name, x.size()), RoundedInput(form_, x));
}

Vector ReferenceModel::Normed(const std::string& name, const Vector& x) {
  return NormedBy(name, spec_.rms_norm_eps, x);
}

Vector ReferenceModel::NormedLatent(const std::string& name, const Vector& x) {
  return NormedBy(name, 1e-6, x);
}

Vector ReferenceModel::NormedBy(const std::string& name, double epsilon,
                                const Vector& x) {
  const Vector& gain = Tensor(name);
  RF_CHECK(gain.size() == x.size());
  double squares = 0;
  for (double value : x) squares += value * value;
  const double root =
      std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = gain[i] * (x[i] / root);
  return y;
}

Vector ReferenceModel::Mlp(const std::string& prefix, const Vector& x) {
  Vector gate = Product(prefix + "gate_proj.weight", x);
  const Vector up = Product(prefix + "up_proj.weight", x);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] *= Sigmoid(gate[i]) * up[i];
  return Product(prefix + "down_proj.weight", gate);
}

bool ReferenceModel::RoundsAttention() const {
  return form_ != WeightForm::kF32 &&
         kernels::CurrentIsa() >= kernels::Isa::kAvx512Bf16;
}

const Vector& ReferenceModel::TransposedKeys(const std::string& kv_b) {
  const auto [entry, inserted] = rounded_.try_emplace(kv_b + " transposed");
  Vector& transposed = entry->second;
  if (!inserted) return transposed;
  const Vector& exact = Tensor(kv_b);
  const size_t latent = spec_.kv_lora_rank;
  const size_t nope = spec_.qk_nope_head_dim;
  for (int h = 0; h < spec_.num_attention_heads; ++h) {
    const double* keys = exact.data() + h * (nope + spec_.v_head_dim) * latent;
    for (size_t i = 0; i < latent; ++i) {
      Vector row(nope);
      for (size_t j = 0; j < nope; ++j) row[j] = keys[j * latent + i];
      RoundWeights(form_, row);
      transposed.insert(transposed.end(), row.begin(), row.end());
    }
  }
  return transposed;
}

// Keys and values of each head.
Rows ReferenceModel::AttendExpanded(const std::string& kv_b,
                                    const AttentionInput& input) {
  const size_t nope = spec_.qk_nope_head_dim;
  const size_t v_dim = spec_.v_head_dim;
  const size_t latent = spec_.kv_lora_rank;
  Rows expanded;
  for (const Vector& cached : input.cache) {
    expanded.push_back(
        Product(kv_b, Vector(cached.begin(), cached.begin() + latent)));
  }
  Rows out(input.queries.size());
  for (int h = 0; h < spec_.num_attention_heads; ++h) {
    Rows queries, keys, values;
    for (size_t t = 0; t < out.size(); ++t) {
      const double* query = input.queries[t].data() + h * spec_.qk_head_dim();
      queries.emplace_back(query, query + spec_.qk_head_dim());
      const double* own = expanded[t].data() + h * (nope + v_dim);
      keys.emplace_back(own, own + nope);
      keys.back().insert(keys.back().end(), input.cache[t].begin() + latent,
                         input.cache[t].end());
      values.emplace_back(own + nope, own + nope + v_dim);
    }
    const Rows attended = AttendHead(queries, keys, values);
    for (size_t t = 0; t < out.size(); ++t) Append(attended[t], out[t]);
  }
  return out;
}

// Queries and results of each head in the space of the latents.
Rows ReferenceModel::AttendAbsorbed(const std::string& kv_b,
                                    const AttentionInput& input) {
  const size_t nope = spec_.qk_nope_head_dim;
  const size_t v_dim = spec_.v_head_dim;
  const size_t latent = spec_.kv_lora_rank;
  const Vector& all_keys = TransposedKeys(kv_b);
  const Vector& all_rows = RoundedTensor(kv_b, latent);
  Rows latents;
  for (const Vector& cached : input.cache) {
    latents.emplace_back(cached.begin(), cached.begin() + latent);
  }
  Rows out(input.queries.size());
  for (int h = 0; h < spec_.num_attention_heads; ++h) {
    const auto of_keys = all_keys.begin() + h * latent * nope;
    const Vector keys(of_keys, of_keys + latent * nope);
    const auto of_values =
        all_rows.begin() + (h * (nope + v_dim) + nope) * latent;
    const Vector values(of_values, of_values + v_dim * latent);
    Rows queries;
    for (const Vector& all : input.queries) {
      const auto query = all.begin() + h * spec_.qk_head_dim();
      queries.push_back(
          Multiply(keys, RoundedInput(form_, Vector(query, query + nope))));
      queries.back().insert(queries.back().end(), query + nope,
                            query + spec_.qk_head_dim());
    }
    const Rows attended = AttendHead(queries, input.cache, latents);
    for (size_t t = 0; t < out.size(); ++t) {
      Append(Multiply(values, RoundedInput(form_, attended[t])), out[t]);
    }
  }
  return out;
}

// Causal attention of one head, a row for each position.
Rows ReferenceModel::AttendHead(Rows queries, Rows keys, Rows values) const {
  if (RoundsAttention()) {
    for (Rows* rows : {&queries, &keys, &values}) {
      for (Vector& row : *rows) RoundToBf16(row);
    }
  }
  const double scale = SoftmaxScale(spec_);
  Rows out;
  for (size_t t = 0; t < queries.size(); ++t) {
    Vector scores(t + 1, 0);
    for (size_t s = 0; s <= t; ++s) {
      for (size_t j = 0; j < queries[t].size(); ++j) {
        scores[s] += queries[t][j] * keys[s][j];
      }
      scores[s] *= scale;
    }
    Softmax(scores);
    if (RoundsAttention()) RoundToBf16(scores);
    Vector sum(values[0].size(), 0);
    for (size_t s = 0; s <= t; ++s) Add(values[s], scores[s], sum);
    out.push_back(std::move(sum));
  }
  return out;
}

// arXiv:2405.04434, section 2.1.2 and appendix C.
void ReferenceModel::AddAttention(const std::string& prefix, Rows& x) {
  const std::string name = prefix + "self_attn.";
  const size_t latent = spec_.kv_lora_rank;
  AttentionInput input;
  for (size_t t = 0; t < x.size(); ++t) {
    const Vector normed = Normed(prefix + "input_layernorm.weight", x[t]);
    Vector query =
        spec_.q_lora_rank == 0
            ? Product(name + "q_proj.weight", normed)
            : Product(name + "q_b_proj.weight",
                      NormedLatent(name + "q_a_layernorm.weight",
                                   Product(name + "q_a_proj.weight", normed)));
    for (int h = 0; h < spec_.num_attention_heads; ++h) {
      Rotate(spec_, t, h * spec_.qk_head_dim() + spec_.qk_nope_head_dim, query);
    }
    if (spec_.query_scale.has_value()) {
      const double original =
          spec_.query_scale->original_max_position_embeddings;
      const double steps = std::floor(static_cast<double>(t) / original);
      for (double& value : query) {
        value *= 1 + spec_.query_scale->beta * std::log(1 + steps);
      }
    }
    input.queries.push_back(std::move(query));
    Vector both = Product(name + "kv_a_proj_with_mqa.weight", normed);
    RF_CHECK(both.size() == latent + spec_.qk_rope_head_dim);
    Rotate(spec_, t, latent, both);
    const Vector normed_latent =
        NormedLatent(name + "kv_a_layernorm.weight",
                     Vector(both.begin(), both.begin() + latent));
    std::copy(normed_latent.begin(), normed_latent.end(), both.begin());
    if (form_ != WeightForm::kF32) RoundToBf16(both);
    input.cache.push_back(std::move(both));
  }
  const std::string kv_b = name + "kv_b_proj.weight";
  const Rows attended =
      absorbs_ ? AttendAbsorbed(kv_b, input) : AttendExpanded(kv_b, input);
  for (size_t t = 0; t < x.size(); ++t) {
    Add(Product(name + "o_proj.weight", attended[t]), 1, x[t]);
  }
}

std::map<int, double> ReferenceModel::ChooseExperts(const std::string& prefix,
                                                    const Vector& x) {
  const bool v3 = spec_.topk_method == cluster::TopkMethod::kNoauxTc;
  Vector scores = Multiply(Tensor(prefix + "gate.weight"), x);
  const bool sigmoid = spec_.scoring_func == cluster::ScoringFunc::kSigmoid;
  if (sigmoid) {
    for (double& score : scores) score = Sigmoid(score);
  } else {
    Softmax(scores);
  }
  Vector choice = scores;
  if (sigmoid) Add(Tensor(prefix + "gate.e_score_correction_bias"), 1, choice);

  std::vector<int> allowed = Iota(spec_.n_routed_experts);
  if (spec_.topk_method != cluster::TopkMethod::kGreedy) {
    const int group_size = spec_.n_routed_experts / spec_.n_group;
    Vector group_scores;
    for (int group = 0; group < spec_.n_group; ++group) {
      Vector members(choice.begin() + group * group_size,
                     choice.begin() + (group + 1) * group_size);
      std::sort(members.rbegin(), members.rend());
      group_scores.push_back(v3 ? members[0] + members[1] : members[0]);
    }
    const std::vector<int> kept = Highest(group_scores, Iota(spec_.n_group),
                                          spec_.topk_group, min_route_gap_);
    std::erase_if(allowed, [&](int expert) {
      return std::find(kept.begin(), kept.end(), expert / group_size) ==
             kept.end();
    });
  }
  const std::vector<int> chosen =
      Highest(choice, allowed, spec_.num_experts_per_tok, min_route_gap_);

  double sum = 0;
  for (int expert : chosen) sum += scores[expert];
  // V3 normalises if asked and always scales; V2 normalises or scales.
  const bool normalises =
      spec_.norm_topk_prob && (v3 || spec_.num_experts_per_tok > 1);
  const double scaling = v3 || !normalises ? spec_.routed_scaling_factor : 1.0;
  std::map<int, double> weights;
  for (int expert : chosen) {
    weights[expert] =
        scores[expert] * scaling / (normalises ? sum + 1e-20 : 1.0);
  }
  return weights;
}

void ReferenceModel::AddFeedForward(int layer, Rows& x,
                                    std::vector<uint64_t>* counts) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string mlp = prefix + "mlp.";
  // The layer behind the last is the MTP module, which is always sparse.
  const bool moe =
      layer == spec_.num_hidden_layers ||
      (spec_.n_routed_experts > 0 && layer >= spec_.first_k_dense_replace &&
       layer % spec_.moe_layer_freq == 0);
  if (moe && counts != nullptr) counts->resize(spec_.n_routed_experts);
  for (Vector& row : x) {
    const Vector normed =
        Normed(prefix + "post_attention_layernorm.weight", row);
    if (!moe) {
      Add(Mlp(mlp, normed), 1, row);
      continue;
    }
    if (spec_.n_shared_experts > 0) {
      Add(Mlp(mlp + "shared_experts.", normed), 1, row);
    }
    for (const auto& [expert, weight] : ChooseExperts(mlp, normed)) {
      Add(Mlp(absl::StrCat(mlp, "experts.", expert, "."), normed), weight, row);
      if (counts != nullptr) ++(*counts)[expert];
    }
  }
}

Rows ReferenceModel::HeadLogits(const Rows& normed) {
  Rows logits;
  for (const Vector& row : normed) {
    logits.push_back(Product(spec_.tie_word_embeddings
                                 ? "model.embed_tokens.weight"
                                 : "lm_head.weight",
                             row));
  }
  return logits;
}

ReferenceOutput ReferenceModel::Evaluate(const std::vector<uint32_t>& ids) {
  const size_t hidden_size = spec_.hidden_size;
  ReferenceOutput output;
  min_route_gap_ = std::numeric_limits<double>::infinity();
  const Vector& table = Tensor("model.embed_tokens.weight");
  const auto embed = [&](uint32_t id) {
    return Vector(table.begin() + id * hidden_size,
                  table.begin() + (id + 1) * hidden_size);
  };

  Rows x;
  for (uint32_t id : ids) x.push_back(embed(id));
  output.expert_counts.resize(spec_.num_hidden_layers);
  for (int layer = 0; layer < spec_.num_hidden_layers; ++layer) {
    output.hidden.push_back(x);
    AddAttention(absl::StrCat("model.layers.", layer, "."), x);
    AddFeedForward(layer, x, &output.expert_counts[layer]);
  }
  for (Vector& row : x) row = Normed("model.norm.weight", row);
  output.hidden.push_back(x);
  output.logits = HeadLogits(x);

  // arXiv:2412.19437, section 2.2, with the released weights' order of the
  // two halves: the embedding of the next token, then the hidden state.
  if (spec_.num_nextn_predict_layers > 0) {
    const std::string prefix =
        absl::StrCat("model.layers.", spec_.num_hidden_layers, ".");
    Rows z;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      Vector pair = Normed(prefix + "enorm.weight", embed(ids[t + 1]));
      const Vector state = Normed(prefix + "hnorm.weight", x[t]);
      pair.insert(pair.end(), state.begin(), state.end());
      z.push_back(Product(prefix + "eh_proj.weight", pair));
    }
    AddAttention(prefix, z);
    AddFeedForward(spec_.num_hidden_layers, z, nullptr);
    for (Vector& row : z) {
      row = Normed(prefix + "shared_head.norm.weight", row);
    }
    output.mtp_logits = HeadLogits(z);
  }
  output.min_route_gap = min_route_gap_;
  return output;
}

}  // namespace ringfleet::testing
