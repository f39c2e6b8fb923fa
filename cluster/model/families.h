// SPDX-License-Identifier: Apache-2.0
// The families of models that this program runs, as one table. A family is an
// architecture with one type of text model: what its configuration means where
// config.json is silent, and where its mathematics differs from DeepSeek-V3's.
// No other file compares names of architectures.
#ifndef RINGFLEET_CLUSTER_MODEL_FAMILIES_H_
#define RINGFLEET_CLUSTER_MODEL_FAMILIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {

// When the softmax scale has the square of YaRN's factor of mscale_all_dim.
enum class SoftmaxRule : uint8_t {
  kAlways,
  kByParams,  // If apply_scale of params.json is true.
};

struct Family {
  absl::string_view name;          // "Kimi K2".
  absl::string_view architecture;  // "DeepseekV3ForCausalLM"
  absl::string_view model_type;    // "kimi_k2": the type of the text model.
  // The type beside text_config; "": config.json has no text_config.
  absl::string_view outer_type;
  // The values of absent members. num_experts_per_tok 0: the member must not be
  // absent.
  ModelSpec defaults;
  SoftmaxRule softmax = SoftmaxRule::kAlways;
  // True: llama_4_scaling_beta of rope_parameters scales queries by position.
  bool scales_queries = false;
  // True: partial_rotary_factor is the share of qk_rope_head_dim in a head.
  // False: it is a share of qk_rope_head_dim.
  bool rotary_factor_of_head = false;
  // Differences of the forward pass from DeepSeek-V3's, one sentence each.
  std::vector<std::string> differences;
  // Parts that have not been compared with published weights; "": none.
  absl::string_view unverified;
};

// Returns all families. The first family of an architecture also stands for
// types of text models that no family has.
absl::Span<const Family> Families();

// Returns the family of an architecture and a type of the text model. Returns
// null for an architecture without a family, and for a type that only other
// architectures have.
const Family* FindFamily(absl::string_view architecture,
                         absl::string_view model_type);
// Returns the first family with this model_type or outer_type, or null.
const Family* FindFamilyOfType(absl::string_view model_type);
// Returns the family of a parsed model. Requires a spec of ParseModelSpec.
const Family& FamilyOf(const ModelSpec& spec);

// Returns the architectures of all families, as in "A, B and C".
std::string FamilyArchitectures();

// Prefixes of tensor names in a checkpoint whose text model is a part.
// `backbone` replaces "model.", `root` precedes names without "model.".
struct NamePrefixes {
  absl::string_view backbone;
  absl::string_view root;
};
// Returns the prefixes that published checkpoints have, the plain ones first.
absl::Span<const NamePrefixes> KnownNamePrefixes();

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_FAMILIES_H_
