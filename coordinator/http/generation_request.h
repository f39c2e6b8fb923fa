// SPDX-License-Identifier: Apache-2.0
// The bodies of /v1/completions and /v1/chat/completions as requests of the
// fleet.
#ifndef RINGFLEET_COORDINATOR_HTTP_GENERATION_REQUEST_H_
#define RINGFLEET_COORDINATOR_HTTP_GENERATION_REQUEST_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/http/api_error.h"
#include "coordinator/jobs/text_stream.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Limits of one request.
inline constexpr size_t kMaxChoices = 256;   // Prompts times n.
inline constexpr int64_t kMaxSamples = 128;  // n.
// Tokens of all choices, prompts included. With log probabilities the likeliest
// ones beside each count, too.
inline constexpr uint64_t kMaxRequestTokens = uint64_t{4} << 20;

struct GenerationRequest {
  bool chat = false;
  // Choice i continues prompts[i / n].
  std::vector<std::vector<uint32_t>> prompts;
  uint32_t n = 1;
  std::vector<uint32_t> max_tokens;  // By prompt.
  v1::SamplingParams sampling;
  int32_t priority = 0;
  std::string cache_salt;
  absl::Duration timeout = absl::InfiniteDuration();
  std::vector<uint32_t> stop_ids;       // Those of the request and the model.
  std::vector<uint32_t> user_stop_ids;  // Those of the request.
  TextRules text_rules;
  bool tells_reasoning = true;  // The client wants to see it.
  bool logprobs = false;        // The drawn tokens have theirs.
  uint32_t top_logprobs = 0;    // Likeliest tokens beside each.
  bool echo = false;            // The text begins with the prompt.
  // Likeliest tokens of each prompt token. Unset: not asked for.
  std::optional<uint32_t> prompt_logprobs;
  bool stream = false;
  bool usage_chunk = false;    // At the end of a stream.
  bool usage_in_each = false;  // And in every chunk.
};

// Facts that the server adds.
struct GenerationContext {
  const ServedModel* model;
  uint32_t positions;  // Per sequence.
  uint32_t default_max_tokens;
  absl::string_view served_name;
};

// Reads a body. Tokenizes and renders, so it may take a while. Fields that ask
// for nothing are ignored, also unknown ones. A field that asks for something
// else is an error that names it.
std::optional<ApiError> ReadGenerationRequest(absl::string_view body, bool chat,
                                              const GenerationContext& context,
                                              GenerationRequest* out);

// Checks the fields of a body that is to be answered later, without stream.
// Neither tokenizes nor renders: a prompt may still be too long or have ids
// that are none, and its messages may be no conversation.
std::optional<ApiError> CheckGenerationRequest(
    const nlohmann::ordered_json& body, bool chat,
    const GenerationContext& context);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_GENERATION_REQUEST_H_
