// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/fleet_jobs.h"

#include <utility>

#include "cluster/process/deadline.h"

namespace ringfleet::coordinator {

absl::StatusOr<std::shared_ptr<Job>> FleetJobs::Submit(Request request,
                                                       bool kept,
                                                       TextRules rules) {
  request.id = table_.NextId();
  std::shared_ptr<Job> job =
      Job::Make(std::move(request), kept, std::move(rules));
  table_.Add(job);
  const absl::Status status = fleet_->Submit(Job::RequestOf(job));
  if (!status.ok()) {
    table_.Remove(job->id());
    return status;
  }
  return job;
}

void FleetJobs::Restore(const std::shared_ptr<Job>& job) {
  table_.Add(job);
  if (job->progress().has_ended()) return;
  const absl::Status status = fleet_->Submit(Job::RequestOf(job));
  if (!status.ok()) job->OnFailed(status);
}

void FleetJobs::Cancel(absl::string_view id) {
  // NOT_FOUND: it has ended in the meantime.
  fleet_->Cancel(id).IgnoreError();
}

absl::StatusOr<std::shared_ptr<Job>> FleetJobs::Start(Request request,
                                                      TextRules rules) {
  return Submit(std::move(request), /*kept=*/false, std::move(rules));
}

void FleetJobs::Leave(const Job& job) {
  if (!job.progress().has_ended()) Cancel(job.id());
  table_.Remove(job.id());
}

absl::Status FleetJobs::ready() const {
  return fleet_->WaitReady(cluster::Deadline::After(absl::ZeroDuration()));
}

}  // namespace ringfleet::coordinator
