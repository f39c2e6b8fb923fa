// SPDX-License-Identifier: Apache-2.0
// Counts and times of the HTTP port under vLLM's names, in Prometheus' text
// format.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_METRICS_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/http/job_source.h"

namespace ringfleet::coordinator {

// For the I/O thread.
class HttpMetrics {
 public:
  HttpMetrics();

  // `reason`: "stop", "length", "abort" or "error".
  void OnChoiceEnd(absl::string_view reason, uint64_t completion_tokens);
  void OnPrompt(uint64_t tokens) { prompt_tokens_ += tokens; }
  void OnFirstToken(absl::Duration after) { first_token_.Add(after); }
  void OnNextToken(absl::Duration after) { next_token_.Add(after); }
  void OnAnswerEnd(absl::Duration age) { answer_.Add(age); }

  std::string Text(absl::string_view model,
                   const JobSource::Counts& jobs) const;

 private:
  struct Histogram {
    std::vector<double> bounds;    // Seconds, rising.
    std::vector<uint64_t> counts;  // By bound; the last is above all.
    double sum = 0;

    void Add(absl::Duration value);
    void Append(absl::string_view name, absl::string_view help,
                absl::string_view labels, std::string* out) const;
  };

  uint64_t prompt_tokens_ = 0, completion_tokens_ = 0;
  std::map<std::string, uint64_t> ended_;  // By reason.
  Histogram first_token_, next_token_, answer_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_METRICS_H_
