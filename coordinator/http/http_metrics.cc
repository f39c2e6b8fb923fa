// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/metrics/fleet_metrics.h"
#include "coordinator/metrics/histogram.h"
#include "coordinator/metrics/metric_list.h"
#include "coordinator/metrics/metrics_text.h"

namespace ringfleet::coordinator {
namespace {

// The classes are vLLM's.
constexpr double kFirstTokenSeconds[] = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kNextTokenSeconds[] = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kRequestSeconds[] = {0.3, 0.5, 0.8, 1,   1.5, 2,    2.5,
                                      5,   10,  15,  20,  30,  40,   50,
                                      60,  120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {1,     2,     5,     10,     20,    50,
                              100,   200,   500,   1000,   2000,  5000,
                              10000, 20000, 50000, 100000, 200000};
constexpr double kChoices[] = {1, 2, 5, 10, 20};
constexpr double kHttpSeconds[] = {0.1, 0.5, 1};
// A proxy logs this status for a client that leaves.
constexpr int kClientLeft = 499;

// Returns `method`, which is text from outside, or "other".
std::string MethodLabel(absl::string_view method) {
  for (const char* const known : {"GET", "POST", "DELETE", "HEAD", "OPTIONS"}) {
    if (method == known) return known;
  }
  return "other";
}

void CountSeconds(absl::Duration value, v1::Histogram* histogram) {
  Count(std::max(0.0, absl::ToDoubleSeconds(value)), histogram);
}

}  // namespace

HttpMetrics::HttpMetrics()
    : first_token_(MakeHistogram(kFirstTokenSeconds)),
      next_token_(MakeHistogram(kNextTokenSeconds)),
      mean_token_(MakeHistogram(kNextTokenSeconds)),
      answer_(MakeHistogram(kRequestSeconds)),
      queue_(answer_),
      prefill_(answer_),
      decode_(answer_),
      inference_(answer_),
      choice_prompt_tokens_(MakeHistogram(kTokens)),
      choice_tokens_(choice_prompt_tokens_),
      choice_max_tokens_(choice_prompt_tokens_),
      choices_(MakeHistogram(kChoices)) {
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    ended_[reason] = 0;
  }
}

void HttpMetrics::OnChoiceEnd(const EndedChoice& choice) {
  ++ended_[std::string(choice.reason)];
  completion_tokens_ += choice.completion_tokens;
  Count(static_cast<double>(choice.prompt_tokens), &choice_prompt_tokens_);
  Count(static_cast<double>(choice.completion_tokens), &choice_tokens_);
  Count(static_cast<double>(choice.max_tokens), &choice_max_tokens_);
  Count(static_cast<double>(choice.n), &choices_);
  if (choice.completion_tokens == 0) return;
  CountSeconds(choice.queue, &queue_);
  CountSeconds(choice.prefill, &prefill_);
  CountSeconds(choice.decode, &decode_);
  CountSeconds(choice.prefill + choice.decode, &inference_);
  if (choice.completion_tokens == 1) return;
  CountSeconds(
      choice.decode / static_cast<double>(choice.completion_tokens - 1),
      &mean_token_);
}

void HttpMetrics::OnFirstToken(absl::Duration after) {
  CountSeconds(after, &first_token_);
}

void HttpMetrics::OnNextToken(absl::Duration after) {
  CountSeconds(after, &next_token_);
}

void HttpMetrics::OnAnswerEnd(absl::Duration age) {
  CountSeconds(age, &answer_);
}

void HttpMetrics::OnRequestEnd(absl::string_view handler,
                               absl::string_view method, int status,
                               absl::Duration took) {
  std::string path(handler);
  std::string verb = MethodLabel(method);
  const int code = status == 0 ? kClientLeft : status;
  ++requests_[{path, verb, absl::StrCat(code / 100, "xx")}];
  const auto [duration, fresh] = durations_.try_emplace({path, verb});
  if (fresh) duration->second = MakeHistogram(kHttpSeconds);
  CountSeconds(took, &duration->second);
}

std::string HttpMetrics::Text(const std::string& model,
                              const v1::ClusterState& fleet,
                              const Access::Figures& access) const {
  MetricsText out;
  const MetricLabels labels = {{"model_name", model}};
  out.Only(metrics::kPromptTokens, labels, prompt_tokens_);
  out.Only(metrics::kGenerationTokens, labels, completion_tokens_);
  out.Begin(metrics::kRequestSuccess);
  for (const auto& [reason, count] : ended_) {
    out.Add({{"model_name", model}, {"finished_reason", reason}}, count);
  }
  out.Only(metrics::kTimeToFirstToken, labels, first_token_);
  out.Only(metrics::kInterTokenLatency, labels, next_token_);
  out.Only(metrics::kTimePerOutputToken, labels, mean_token_);
  out.Only(metrics::kEndToEndLatency, labels, answer_);
  out.Only(metrics::kQueueTime, labels, queue_);
  out.Only(metrics::kPrefillTime, labels, prefill_);
  out.Only(metrics::kDecodeTime, labels, decode_);
  out.Only(metrics::kInferenceTime, labels, inference_);
  out.Only(metrics::kRequestPromptTokens, labels, choice_prompt_tokens_);
  out.Only(metrics::kRequestGenerationTokens, labels, choice_tokens_);
  out.Only(metrics::kRequestMaxTokens, labels, choice_max_tokens_);
  out.Only(metrics::kRequestChoices, labels, choices_);
  AppendFleetMetrics(fleet, model, &out);
  out.Begin(metrics::kHttpRequests);
  for (const auto& [kind, count] : requests_) {
    const auto& [path, method, status] = kind;
    out.Add({{"handler", path}, {"method", method}, {"status", status}}, count);
  }
  out.Begin(metrics::kHttpDuration);
  for (const auto& [kind, duration] : durations_) {
    out.Add({{"handler", kind.first}, {"method", kind.second}}, duration);
  }
  out.Begin(metrics::kAccessLoads);
  for (const auto& [files, loads] :
       {std::pair("api_keys", access.keys), std::pair("tls", access.tls)}) {
    out.Add({{"files", files}, {"outcome", "taken"}}, loads.taken);
    out.Add({{"files", files}, {"outcome", "refused"}}, loads.refused);
  }
  if (access.certificate_end.has_value()) {
    out.Only(
        metrics::kCertificateEnd, {},
        absl::ToDoubleSeconds(*access.certificate_end - absl::UnixEpoch()));
  }
  return out.Take();
}

}  // namespace ringfleet::coordinator
