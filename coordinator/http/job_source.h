// SPDX-License-Identifier: Apache-2.0
// The part of the coordinator that HTTP needs.
#ifndef RINGFLEET_COORDINATOR_HTTP_JOB_SOURCE_H_
#define RINGFLEET_COORDINATOR_HTTP_JOB_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/jobs/job.h"
#include "coordinator/scheduling/request.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

// Thread-safe.
class JobSource {
 public:
  virtual ~JobSource() = default;

  // Gives the request an id and hands it to the fleet. `rules`: see Job::Make.
  // Errors: those of Fleet::Submit.
  virtual absl::StatusOr<std::shared_ptr<Job>> Start(Request request,
                                                     TextRules rules) = 0;
  // Ends a job unless it has ended, and forgets it.
  virtual void Leave(const Job& job) = 0;

  // Says why no job can run at this moment.
  virtual absl::Status ready() const = 0;
  // Returns the positions per sequence; 0 unless ready.
  virtual uint32_t context() const = 0;

  // Returns the fleet's state with its figures.
  virtual v1::ClusterState state() const = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_JOB_SOURCE_H_
