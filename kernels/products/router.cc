// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/router.h"

#include <algorithm>
#include <limits>

#include "absl/types/span.h"
#include "kernels/check.h"
#include "kernels/exp-inl.h"

namespace ringfleet::kernels {
namespace {

// Choice value of what can't be chosen (any more). Every other value is at
// least kLowest, so that even an expert whose score is NaN or -infinity is
// only ever chosen once and only inside a kept group.
constexpr float kClosed = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();

// NaN becomes kLowest too.
float Open(float value) { return value > kLowest ? value : kLowest; }

// Index of the highest open value, the lowest index among equals.
int Highest(absl::Span<const float> values) {
  int best = -1;
  float highest = kClosed;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > highest) {
      highest = values[i];
      best = static_cast<int>(i);
    }
  }
  return best;
}

// Logits to scores in place.
void Softmax(absl::Span<float> scores) {
  float max = kLowest;
  for (const float score : scores) max = std::max(max, score);
  float sum = 0;
  for (float& score : scores) {
    score = Exp(score - max);
    sum += score;
  }
  for (float& score : scores) score /= sum;
}

void Sigmoid(absl::Span<float> scores) {
  for (float& score : scores) score = 1.0f / (1.0f + Exp(-score));
}

// Highest choice of a group, or the sum of its two highest.
float GroupScore(RouterMethod method, absl::Span<const float> choices) {
  float first = kClosed;
  float second = kClosed;
  for (const float choice : choices) {
    if (choice > first) {
      second = first;
      first = choice;
    } else if (choice > second) {
      second = choice;
    }
  }
  if (method != RouterMethod::kNoauxTc || choices.size() < 2) return first;
  return Open(first + second);
}

// Closes every choice outside the topk_group best groups.
void CloseGroups(const RouterParameters& parameters, absl::Span<float> choices,
                 float* group_scores) {
  const size_t num_groups = static_cast<size_t>(parameters.n_group);
  const size_t group_size = choices.size() / num_groups;
  const absl::Span<float> groups(group_scores, num_groups);
  for (size_t g = 0; g < num_groups; ++g) {
    groups[g] = GroupScore(parameters.method,
                           choices.subspan(g * group_size, group_size));
  }
  // A kept group's score is closed so that it is not kept twice; what stays
  // open afterwards was not kept.
  for (int i = 0; i < parameters.topk_group; ++i) {
    groups[Highest(groups)] = kClosed;
  }
  for (size_t g = 0; g < num_groups; ++g) {
    if (groups[g] == kClosed) continue;
    std::fill_n(choices.begin() + g * group_size, group_size, kClosed);
  }
}

// Scores to weights, in place.
void Weigh(const RouterParameters& parameters, absl::Span<float> weights) {
  const bool v3 = parameters.method == RouterMethod::kNoauxTc;
  const bool normalize =
      parameters.norm_topk_prob && (v3 || weights.size() > 1);
  if (normalize) {
    float sum = 0;
    for (const float weight : weights) sum += weight;
    sum += 1e-20f;
    for (float& weight : weights) weight /= sum;
  }
  if (v3 || !normalize) {
    for (float& weight : weights) weight *= parameters.routed_scaling_factor;
  }
}

void CheckParameters(const RouterParameters& parameters) {
  RF_CHECK(parameters.num_experts > 0);
  RF_CHECK(parameters.num_experts_per_tok > 0);
  RF_CHECK(parameters.num_experts_per_tok <= parameters.num_experts);
  if (parameters.method == RouterMethod::kGreedy) return;
  RF_CHECK(parameters.n_group > 0);
  RF_CHECK(parameters.num_experts % parameters.n_group == 0);
  RF_CHECK(parameters.topk_group > 0);
  RF_CHECK(parameters.topk_group <= parameters.n_group);
  RF_CHECK(parameters.num_experts_per_tok <=
           parameters.num_experts / parameters.n_group * parameters.topk_group);
}

// `scores` holds the logits; `choices` and `group_scores` are scratch.
void RouteRow(const RouterParameters& parameters, const float* bias,
              absl::Span<float> scores, absl::Span<float> choices,
              float* group_scores, absl::Span<int32_t> ids,
              absl::Span<float> weights) {
  if (parameters.score == RouterScore::kSoftmax) {
    Softmax(scores);
  } else {
    Sigmoid(scores);
  }
  for (size_t e = 0; e < scores.size(); ++e) {
    choices[e] = Open(bias == nullptr ? scores[e] : scores[e] + bias[e]);
  }
  if (parameters.method != RouterMethod::kGreedy) {
    CloseGroups(parameters, choices, group_scores);
  }
  for (int32_t& id : ids) {
    id = Highest(choices);
    choices[id] = kClosed;
  }
  std::sort(ids.begin(), ids.end());
  for (size_t k = 0; k < ids.size(); ++k) weights[k] = scores[ids[k]];
  Weigh(parameters, weights);
}

}  // namespace

float DeterministicExp(float x) { return Exp(x); }

void RouteLogits(const RouterParameters& parameters, const float* logits,
                 size_t rows, const float* bias, float* scratch, int32_t* ids,
                 float* weights) {
  CheckParameters(parameters);
  const size_t num_experts = static_cast<size_t>(parameters.num_experts);
  const size_t chosen = static_cast<size_t>(parameters.num_experts_per_tok);
  const absl::Span<float> scores(scratch, num_experts);
  const absl::Span<float> choices(scratch + num_experts, num_experts);
  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(logits + row * num_experts, num_experts, scores.begin());
    RouteRow(parameters, bias, scores, choices, scratch + 2 * num_experts,
             {ids + row * chosen, chosen}, {weights + row * chosen, chosen});
  }
}

}  // namespace ringfleet::kernels
