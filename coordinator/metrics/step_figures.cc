// SPDX-License-Identifier: Apache-2.0
#include "coordinator/metrics/step_figures.h"

#include <algorithm>
#include <chrono>

#include "coordinator/metrics/histogram.h"

namespace ringfleet::coordinator {
namespace {

// From a tiny model on one host to a chunk of a prompt on a large one.
constexpr double kStepSeconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                   0.1,   0.25,   0.5,   1,    2.5,   5,
                                   10,    30,     60,    300};
constexpr double kStepSequences[] = {1,  2,   4,   8,   16,  32,
                                     64, 128, 256, 512, 1024};
// vLLM's classes.
constexpr double kStepTokens[] = {1,   8,    16,   32,   64,   128,  256,
                                  512, 1024, 2048, 4096, 8192, 16384};
// Part of the average that each step replaces. An average then covers about the
// last hundred steps.
constexpr double kNewPart = 0.01;

}  // namespace

StepFigures::StepFigures() {
  *figures_.mutable_step_seconds() = MakeHistogram(kStepSeconds);
  *figures_.mutable_step_sequences() = MakeHistogram(kStepSequences);
  *figures_.mutable_step_tokens() = MakeHistogram(kStepTokens);
}

void StepFigures::OnReady() {
  MutexLock lock(&mu_);
  figures_.set_ready_epochs(figures_.ready_epochs() + 1);
}

void StepFigures::OnEnd(bool failed) {
  MutexLock lock(&mu_);
  in_flight_.clear();
  if (failed) figures_.set_failed_epochs(figures_.failed_epochs() + 1);
}

void StepFigures::OnPlan(const v1::StepPlan& plan, Time now) {
  Sent sent;
  sent.at = now;
  for (const v1::PrefillSpan& span : plan.prefills()) {
    sent.prompt_tokens += span.count();
  }
  for (const v1::ReplaySpan& span : plan.replays()) {
    sent.replayed_tokens += span.count();
  }
  for (const v1::Decode& decode : plan.decodes()) {
    sent.decodes += 1 + decode.drafts();
  }
  sent.sequences = static_cast<uint64_t>(
      plan.prefills_size() + plan.replays_size() + plan.decodes_size());
  const auto replays = std::count_if(
      plan.admissions().begin(), plan.admissions().end(),
      [](const v1::Admission& of) { return !of.committed_ids().empty(); });
  MutexLock lock(&mu_);
  figures_.set_replays(figures_.replays() + static_cast<uint64_t>(replays));
  in_flight_.push_back(sent);
}

void StepFigures::OnResult(const v1::StepResult& merged, Time now) {
  MutexLock lock(&mu_);
  if (in_flight_.empty()) return;
  const Sent sent = in_flight_.front();
  in_flight_.pop_front();
  const Time begun = std::max(sent.at, last_result_);
  last_result_ = now;
  if (sent.tokens() == 0) return;  // Frees slots or moves experts only.
  Count(std::chrono::duration<double>(now - begun).count(),
        figures_.mutable_step_seconds());
  Count(static_cast<double>(sent.sequences), figures_.mutable_step_sequences());
  Count(static_cast<double>(sent.tokens()), figures_.mutable_step_tokens());
  uint64_t generated = figures_.generated_tokens();
  for (const v1::SlotResult& slot : merged.slots()) {
    generated += static_cast<uint64_t>(slot.tokens_size());
  }
  figures_.set_generated_tokens(generated);
  figures_.set_prompt_tokens(figures_.prompt_tokens() + sent.prompt_tokens);
  figures_.set_replayed_tokens(figures_.replayed_tokens() +
                               sent.replayed_tokens);
  figures_.set_read_bytes(figures_.read_bytes() + merged.bytes_read());
  figures_.set_sent_bytes(figures_.sent_bytes() + merged.bytes_sent());
  const double part = mean_tokens_ == 0 ? 1 : kNewPart;
  mean_sent_bytes_ +=
      part * (static_cast<double>(merged.bytes_sent()) - mean_sent_bytes_);
  mean_tokens_ += part * (static_cast<double>(sent.tokens()) - mean_tokens_);
  figures_.set_sent_bytes_per_token(mean_sent_bytes_ / mean_tokens_);
}

void StepFigures::SetExperts(
    const google::protobuf::RepeatedPtrField<v1::ExpertImbalance>& experts) {
  MutexLock lock(&mu_);
  *figures_.mutable_experts() = experts;
}

v1::FleetFigures StepFigures::Read() const {
  MutexLock lock(&mu_);
  return figures_;
}

}  // namespace ringfleet::coordinator
