// SPDX-License-Identifier: Apache-2.0
// A job's changes as the events of Coordinator.Generate and Coordinator.Score.
#ifndef RINGFLEET_COORDINATOR_SERVICE_JOB_EVENTS_H_
#define RINGFLEET_COORDINATOR_SERVICE_JOB_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/text_stream.h"
#include "coordinator/service/job_stream.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator {

// Notices when what a job waits for changes. Not thread-safe.
class WaitingNotes {
 public:
  // Returns what to tell the caller, or nothing if that was told. Empty: the
  // job goes on.
  std::optional<std::string> Next(const JobProgress& progress);

 private:
  std::string told_;
};

// One `accepted`, then tokens, then `finished`.
class GenerateEvents final : public JobEvents<v1::GenerateEvent> {
 public:
  // `fleet` must outlive this object.
  explicit GenerateEvents(const Fleet& fleet) : fleet_(fleet) {}

  std::variant<std::monostate, v1::GenerateEvent, absl::Status> Next(
      const Job& job) override;

 private:
  const Fleet& fleet_;
  std::optional<TextStream> text_;  // From the first event on.
  WaitingNotes waiting_;
  bool accepted_ = false;
  bool prompt_told_ = false;
  bool finished_ = false;
  std::vector<DrawnToken> tokens_;  // Read from the job.
  size_t told_ = 0;                 // Told so far, a part of tokens_.
  size_t first_ = 0;                // Number of tokens_[0] in the job.
};

// Progress, then the parts of the result.
class ScoreEvents final : public JobEvents<v1::ScoreEvent> {
 public:
  std::variant<std::monostate, v1::ScoreEvent, absl::Status> Next(
      const Job& job) override;

 private:
  WaitingNotes waiting_;
  uint32_t told_ = 0;  // Scored ids.
  bool split_ = false;
  std::vector<v1::ScoreEvent::Result> parts_;
  size_t sent_ = 0;
};

v1::Timings TimingsOf(const RequestTimings& timings, double load_ms);
v1::JobInfo InfoOf(const Job& job, const JobProgress& progress);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_JOB_EVENTS_H_
