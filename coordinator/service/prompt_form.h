// SPDX-License-Identifier: Apache-2.0
// The prompt of a call: a text, ids or a conversation.
#ifndef RINGFLEET_COORDINATOR_SERVICE_PROMPT_FORM_H_
#define RINGFLEET_COORDINATOR_SERVICE_PROMPT_FORM_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/chat/reasoning.h"
#include "coordinator/fleet/served_model.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator {

struct PromptForm {
  std::vector<uint32_t> ids;
  // How the answer to a conversation is divided. Nothing: it is not.
  std::optional<Reasoning> reasoning;
};

// Returns the ids of a prompt, of which the caller can use `most` at most.
//
// Errors: those of ServedModel::PromptIds. INVALID_ARGUMENT names the wrong
// field of a conversation, as /v1/chat/completions does.
absl::StatusOr<PromptForm> ReadPromptForm(
    const ServedModel& model, const v1::Prompt& prompt,
    uint64_t most = ServedModel::kAnyNumber);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_PROMPT_FORM_H_
