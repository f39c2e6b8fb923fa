// SPDX-License-Identifier: Apache-2.0
// How requests come to the scheduler and leave it early, and how epochs begin
// and end.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduling/scheduler.h"

namespace ringfleet::coordinator {

void Scheduler::OpenEpoch(const Epoch& epoch) {
  epoch_ = epoch;
  context_ = epoch.context;
  batch_budget_.SetLimit(epoch.batch_step_time);
  last_step_ = 0;
  for (const auto& run : queue_.runs()) {
    run->waited = {};
    if (!waiting_for_.empty()) {
      updates_.push_back({run->request, RequestUpdate::Waiting{""}});
    }
  }
  waiting_for_.clear();
  slots_.assign(size_t{epoch.groups} * epoch.slots, nullptr);
  for (uint32_t group = 0; group < epoch.groups; ++group) {
    caches_.emplace_back(epoch.blocks);
  }
}

void Scheduler::ContinueAfter(uint64_t last_step) {
  last_step_ = last_step;
  for (BlockCache& cache : caches_) cache = BlockCache(cache.total());
}

void Scheduler::CloseEpoch(const absl::Status& cause, bool failed) {
  if (!epoch_.has_value()) return;
  const bool alone = running() == 1;
  if (failed) CountFailure();
  for (const uint32_t slot : order_) {
    Sequence& sequence = *slots_[slot];
    if (sequence.left) continue;
    if (alone && failed && !sequence.progressed &&
        sequence.run->failures >= Run::kMostFailures) {
      sequence.left = true;
      absl::Status alone_cause = cause;
      alone_cause.SetPayload(kFailedAlonePayload, absl::Cord());
      Fail(alone_cause, *sequence.run);
      continue;
    }
    WaitAgain(sequence);
  }
  order_.clear();
  slots_.clear();
  caches_.clear();
  in_flight_.clear();
  held_for_.clear();
  epoch_.reset();
  counted_ = now_();
  TellWaiting(std::string(cause.message()));
}

void Scheduler::CountFailure() {
  struct Rows {
    uint64_t begin, end;
  };
  std::map<Sequence*, Rows> in_flight;
  for (const PlanInFlight& flight : in_flight_) {
    for (const PlannedWork& work : flight.work) {
      const auto [it, first] = in_flight.try_emplace(
          work.sequence.get(), Rows{work.begin, work.end});
      if (!first) it->second.end = work.end;
    }
  }
  for (const PlanInFlight& flight : in_flight_) {
    // Without rows yet: the admission itself may be what fails.
    for (const auto& sequence : flight.admitted) {
      const uint64_t begin = sequence->cached();
      in_flight.try_emplace(sequence.get(), Rows{begin, begin + 1});
    }
  }
  for (const auto& [sequence, rows] : in_flight) {
    if (sequence->left || sequence->progressed) continue;
    sequence->run->AddFailure(rows.begin, rows.end);
  }
}

void Scheduler::TellWaiting(const std::string& why) {
  if (epoch_.has_value() || why == waiting_for_) return;
  waiting_for_ = why;
  for (const auto& run : queue_.runs()) {
    updates_.push_back({run->request, RequestUpdate::Waiting{why}});
  }
}

void Scheduler::Hold(const std::string& why) {
  if (why == held_for_) return;
  held_for_ = why;
  for (const auto& run : queue_.runs()) {
    updates_.push_back({run->request, RequestUpdate::Waiting{why}});
  }
}

absl::Status Scheduler::Submit(std::shared_ptr<const Request> request) {
  const size_t prompt_n = request->prompt_ids.size();
  if (prompt_n == 0)
    return absl::InvalidArgumentError("prompt: empty, want at least one token");
  if (context_ > 0 && prompt_n > context_ && !request->windows) {
    return PromptTooLong(prompt_n, context_);
  }
  if (queue_.size() >= kMaxWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(queue_.size(), " jobs are waiting, want fewer than ",
                     kMaxWaiting, "; try again later"));
  }
  auto run = std::make_shared<Run>();
  run->request = std::move(request);
  run->committed = run->request->drawn;
  run->arrival = ++arrivals_;
  run->submitted = now_();
  const std::string& why = epoch_.has_value() ? held_for_ : waiting_for_;
  if (!why.empty()) {
    updates_.push_back({run->request, RequestUpdate::Waiting{why}});
  }
  queue_.Push(std::move(run));
  return absl::OkStatus();
}

absl::Status Scheduler::Cancel(absl::string_view id) {
  const absl::Status status =
      absl::CancelledError(absl::StrCat("job ", id, " was cancelled"));
  const auto matches = [id](const Run& run) { return run.request->id == id; };
  if (const auto run = queue_.Take(matches); run != nullptr) {
    Fail(status, *run);
    return absl::OkStatus();
  }
  for (const uint32_t slot : order_) {
    Sequence& sequence = *slots_[slot];
    if (sequence.left || !matches(*sequence.run)) continue;
    sequence.left = true;
    Fail(status, *sequence.run);
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("job ", id, " is neither running nor waiting"));
}

void Scheduler::Expire(bool loading, absl::Duration longest_wait,
                       const absl::Status& why) {
  const auto now = now_();
  const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
      "the job's timeout has passed",
      waiting_for_.empty() ? "" : absl::StrCat("; ", waiting_for_)));
  for (const uint32_t slot : order_) {
    Sequence& sequence = *slots_[slot];
    if (sequence.left || !sequence.request().deadline.Expired(now)) continue;
    sequence.left = true;
    Fail(late, *sequence.run);
  }
  while (const auto run = queue_.Take([now](const Run& run) {
    return run.request->deadline.Expired(now);
  })) {
    Fail(late, *run);
  }
  const auto counted = std::exchange(counted_, now);
  if (epoch_.has_value() || loading) return;
  for (const auto& run : queue_.runs()) {
    run->waited += now - std::max(counted, run->submitted);
  }
  while (const auto run = queue_.Take([longest_wait](const Run& run) {
    return absl::FromChrono(run.waited) >= longest_wait;
  })) {
    Fail(why, *run);
  }
}

void Scheduler::FailAll(const absl::Status& status) {
  for (const uint32_t slot : order_) {
    Sequence& sequence = *slots_[slot];
    if (sequence.left) continue;
    sequence.left = true;
    Fail(status, *sequence.run);
  }
  while (const auto run = queue_.Pop()) Fail(status, *run);
  CloseEpoch(status, /*failed=*/false);
}

}  // namespace ringfleet::coordinator
