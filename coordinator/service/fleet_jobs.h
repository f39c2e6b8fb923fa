// SPDX-License-Identifier: Apache-2.0
// Makes jobs of requests and gives them to the fleet, for every face.
#ifndef RINGFLEET_COORDINATOR_SERVICE_FLEET_JOBS_H_
#define RINGFLEET_COORDINATOR_SERVICE_FLEET_JOBS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/http/job_source.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_table.h"

namespace ringfleet::coordinator {

// Thread-safe.
class FleetJobs final : public JobSource {
 public:
  // `fleet` must outlive this object.
  explicit FleetJobs(Fleet* fleet) : fleet_(fleet) {}

  // `kept`, `rules`: see Job::Make. Errors: those of Fleet::Submit.
  absl::StatusOr<std::shared_ptr<Job>> Submit(Request request, bool kept,
                                              TextRules rules);
  // Adds a job that an earlier coordinator had. One that has not ended goes on;
  // it fails with the errors of Fleet::Submit.
  void Restore(const std::shared_ptr<Job>& job);
  // Ends a job. Does nothing to one that has ended.
  void Cancel(absl::string_view id);

  JobTable& table() { return table_; }

  absl::StatusOr<std::shared_ptr<Job>> Start(Request request,
                                             TextRules rules) override;
  void Leave(const Job& job) override;
  absl::Status ready() const override;
  uint32_t context() const override { return fleet_->context(); }
  v1::ClusterState state() const override { return fleet_->State(); }

 private:
  Fleet* const fleet_;
  JobTable table_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_FLEET_JOBS_H_
