// SPDX-License-Identifier: Apache-2.0
// Counts and times of the HTTP port, and the text of /metrics.
// coordinator/metrics/metric_list.h has the names.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_METRICS_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_METRICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/http/access.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

// For the I/O thread.
class HttpMetrics {
 public:
  HttpMetrics();

  // A choice that has ended.
  struct EndedChoice {
    absl::string_view reason;  // "stop", "length", "abort" or "error".
    uint64_t prompt_tokens = 0;
    uint64_t completion_tokens = 0;
    uint64_t max_tokens = 0;
    uint64_t n = 1;  // Choices for its prompt.
    // Zero without tokens.
    absl::Duration queue;    // Until it entered a slot.
    absl::Duration prefill;  // From then to its first token.
    absl::Duration decode;   // From then to its last token.
  };
  void OnChoiceEnd(const EndedChoice& choice);
  void OnPrompt(uint64_t tokens) { prompt_tokens_ += tokens; }
  void OnFirstToken(absl::Duration after);
  void OnNextToken(absl::Duration after);
  void OnAnswerEnd(absl::Duration age);
  // `handler`: the path of a route; `status`: 0 if the client left before.
  void OnRequestEnd(absl::string_view handler, absl::string_view method,
                    int status, absl::Duration took);

  // Returns all metrics of the coordinator.
  std::string Text(const std::string& model, const v1::ClusterState& fleet,
                   const Access::Figures& access) const;

 private:
  // Path, method and class of status.
  using RequestKind = std::tuple<std::string, std::string, std::string>;

  uint64_t prompt_tokens_ = 0, completion_tokens_ = 0;
  std::map<std::string, uint64_t> ended_;  // By reason.
  v1::Histogram first_token_, next_token_, mean_token_, answer_;
  v1::Histogram queue_, prefill_, decode_, inference_;
  v1::Histogram choice_prompt_tokens_, choice_tokens_, choice_max_tokens_;
  v1::Histogram choices_;
  std::map<RequestKind, uint64_t> requests_;
  // By path and method.
  std::map<std::pair<std::string, std::string>, v1::Histogram> durations_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_METRICS_H_
