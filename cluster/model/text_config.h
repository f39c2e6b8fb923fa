// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_TEXT_CONFIG_H_
#define RINGFLEET_CLUSTER_MODEL_TEXT_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/config_fields.h"
#include "cluster/model/families.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {

// The configuration of a text model, however deep in config.json.
struct TextConfig {
  // The members of text_config, with those beside text_config that it lacks.
  // Without text_config: config.json itself. Members have their usual names.
  nlohmann::json members;
  const Family* family = nullptr;
  std::string model_type;
  bool nested = false;  // True: there is a text_config.

  // Returns "config.json: " or "config.json: text_config.".
  std::string Place() const;
};

// Finds the text model's configuration in config.json, and its family.
//
// Errors: INVALID_ARGUMENT: names an architecture or a model_type that no
// family has, and the ones that families have; a member beside text_config, or
// another name of a member, contradicts the member.
absl::StatusOr<TextConfig> ReadTextConfig(nlohmann::json config);

// Refuses members that change the mathematics in a way that no family has,
// unless their value means none: biases, other activations, sliding windows,
// scales and caps of other architectures. Layers of sparse attention are
// accepted in families that have an indexer.
void RefuseOtherMathematics(ConfigFields& fields, const Family& family);

// Counts members as read that change no result: those of training, of other
// programs, of images, and those that follow from others.
void IgnoreMembersWithoutEffect(ConfigFields& fields);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_TEXT_CONFIG_H_
