// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_text.h"

namespace ringfleet::coordinator {
namespace {

void AppendValue(absl::string_view name, absl::string_view kind,
                 absl::string_view help, absl::string_view labels,
                 uint64_t value, std::string* out) {
  absl::StrAppend(out, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind,
                  "\n", name, "{", labels, "} ", value, "\n");
}

}  // namespace

HttpMetrics::HttpMetrics() {
  first_token_.bounds = {0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1,
                         2.5,  5,    10,   20,  40,   80,  160};
  next_token_.bounds = {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                        0.2,   0.3,  0.4,   0.5,  0.75,  1,   2.5};
  answer_.bounds = {0.1, 0.3, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280};
  for (Histogram* histogram : {&first_token_, &next_token_, &answer_}) {
    histogram->counts.resize(histogram->bounds.size() + 1);
  }
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    ended_[reason] = 0;
  }
}

void HttpMetrics::OnChoiceEnd(absl::string_view reason,
                              uint64_t completion_tokens) {
  ++ended_[std::string(reason)];
  completion_tokens_ += completion_tokens;
}

void HttpMetrics::Histogram::Add(absl::Duration value) {
  const double seconds = absl::ToDoubleSeconds(value);
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), seconds);
  ++counts[static_cast<size_t>(bound - bounds.begin())];
  sum += seconds;
}

void HttpMetrics::Histogram::Append(absl::string_view name,
                                    absl::string_view help,
                                    absl::string_view labels,
                                    std::string* out) const {
  absl::StrAppend(out, "# HELP ", name, " ", help, "\n# TYPE ", name,
                  " histogram\n");
  uint64_t count = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    absl::StrAppend(out, name, "_bucket{", labels, ",le=\"",
                    i < bounds.size() ? absl::StrCat(bounds[i]) : "+Inf",
                    "\"} ", count, "\n");
  }
  absl::StrAppend(out, name, "_sum{", labels, "} ", sum, "\n", name, "_count{",
                  labels, "} ", count, "\n");
}

std::string HttpMetrics::Text(absl::string_view model,
                              const JobSource::Counts& jobs) const {
  std::string labels = "model_name=";
  AppendJsonString(model, &labels);  // Prometheus escapes alike.
  std::string out;
  AppendValue("vllm:num_requests_running", "gauge",
              "Jobs in a slot, of all callers.", labels, jobs.running, &out);
  AppendValue("vllm:num_requests_waiting", "gauge",
              "Jobs that wait for a slot, of all callers.", labels,
              jobs.waiting, &out);
  AppendValue("vllm:prompt_tokens_total", "counter",
              "Prompt tokens of answers over HTTP.", labels, prompt_tokens_,
              &out);
  AppendValue("vllm:generation_tokens_total", "counter",
              "Drawn tokens of answers over HTTP.", labels, completion_tokens_,
              &out);
  absl::StrAppend(&out,
                  "# HELP vllm:request_success_total Ended choices by "
                  "reason.\n# TYPE vllm:request_success_total counter\n");
  for (const auto& [reason, count] : ended_) {
    absl::StrAppend(&out, "vllm:request_success_total{", labels,
                    ",finished_reason=\"", reason, "\"} ", count, "\n");
  }
  first_token_.Append("vllm:time_to_first_token_seconds",
                      "From a request's last byte to its first token.", labels,
                      &out);
  next_token_.Append("vllm:inter_token_latency_seconds",
                     "Between two tokens of a choice.", labels, &out);
  answer_.Append("vllm:e2e_request_latency_seconds",
                 "From a request's last byte to its answer's end.", labels,
                 &out);
  return out;
}

}  // namespace ringfleet::coordinator
