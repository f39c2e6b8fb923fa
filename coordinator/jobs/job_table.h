// SPDX-License-Identifier: Apache-2.0
// The jobs that a coordinator knows: those that wait or run, and kept ones that
// have ended.
#ifndef RINGFLEET_COORDINATOR_JOBS_JOB_TABLE_H_
#define RINGFLEET_COORDINATOR_JOBS_JOB_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/jobs/job.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Thread-safe.
class JobTable {
 public:
  struct Limits {
    // Kept jobs that have ended: the oldest beyond this number are dropped, and
    // all that ended this long ago.
    size_t ended = 1024;
    absl::Duration age = absl::Hours(24);
  };

  JobTable() : JobTable(Limits(), absl::Now) {}
  JobTable(Limits limits, absl::Time (*now)());

  // Returns an id that no other job has, also after a restart.
  std::string NextId();

  // Adds a job under its id, which must be new.
  void Add(std::shared_ptr<Job> job);
  // Forgets a job. Does nothing to an unknown one.
  void Remove(absl::string_view id);

  // NOT_FOUND: no such job, or its result was dropped.
  absl::StatusOr<std::shared_ptr<Job>> Find(absl::string_view id) const;
  struct Numbered {
    uint64_t number = 0;  // From 1, in the order of addition; never reused.
    std::shared_ptr<Job> job;
  };
  // Returns the jobs that are listed, in the order of their addition, behind
  // the job of number `after`.
  std::vector<Numbered> ListAfter(uint64_t after) const;

 private:
  void DropOld() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  absl::Time (*const now_)();
  const std::string prefix_;  // Random.

  mutable Mutex mu_;
  uint32_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  mutable std::map<uint64_t, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_JOBS_JOB_TABLE_H_
