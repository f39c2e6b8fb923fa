// SPDX-License-Identifier: Apache-2.0
// The endpoints that need a tokenizer only. Thread-safe.
#ifndef RINGFLEET_COORDINATOR_HTTP_TOKEN_ENDPOINTS_H_
#define RINGFLEET_COORDINATOR_HTTP_TOKEN_ENDPOINTS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/http/http_message.h"

namespace ringfleet::coordinator {

// POST /tokenize: {"prompt" | "content" | "messages", ...} ->
// {"tokens", "count", "max_model_len", "token_strs"}. With "with_pieces" a
// token is {"id", "piece"}. `positions` is 0 as long as no fleet has told them.
HttpResponse Tokenize(const ServedModel& model, uint32_t positions,
                      absl::string_view body);
// POST /detokenize: {"tokens"} -> {"prompt", "content", "text"}, all equal.
HttpResponse Detokenize(const ServedModel& model, absl::string_view body);
// POST /apply-template: {"messages", ...} -> {"prompt"}.
HttpResponse ApplyTemplate(const ServedModel& model, absl::string_view body);
// GET /tokenizer_info: tokenizer_config.json with the chat template.
HttpResponse TokenizerInfo(const ServedModel& model,
                           const std::string& model_dir);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_TOKEN_ENDPOINTS_H_
