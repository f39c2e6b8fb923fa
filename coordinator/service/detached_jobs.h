// SPDX-License-Identifier: Apache-2.0
// Keeps detached jobs in a store, so that they go on after a restart of the
// coordinator with the tokens that they had.
#ifndef RINGFLEET_COORDINATOR_SERVICE_DETACHED_JOBS_H_
#define RINGFLEET_COORDINATOR_SERVICE_DETACHED_JOBS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/jobs/job.h"
#include "coordinator/store/detached_table.h"
#include "coordinator/store/store.h"
#include "kernels/mutex.h"
#include "protos/stored_job.pb.h"

namespace ringfleet::coordinator {

// Thread-safe.
class DetachedJobs {
 public:
  // `stopping` tells that jobs end because the coordinator does: they go on
  // later. `store` must outlive this object.
  DetachedJobs(Store* store, std::function<bool()> stopping);
  ~DetachedJobs();  // Stop, unless done before. The store was stopped first.

  // A job as the store has it.
  struct Kept {
    std::string id;
    v1::StoredJob job;
    std::vector<DrawnToken> tokens;
  };
  absl::StatusOr<std::vector<Kept>> Load();

  // Stores a job, and then its tokens each second until it has ended. `done`
  // learns whether it is stored, as in Store::WriteSoon. `stored`: tokens that
  // the store has.
  void Keep(const std::shared_ptr<Job>& job, v1::StoredJob stored_job,
            Store::Done done);
  void GoOn(const std::shared_ptr<Job>& job, v1::StoredJob stored_job,
            size_t stored);
  // Stores that a job has ended, before it does. Does nothing to one that has.
  // Errors: those of Store::WriteNow.
  absl::Status NoteCancelled(const std::string& id);
  // Forgets a job.
  void Remove(const std::string& id);
  // Queues the last tokens for the store.
  void Stop();

 private:
  struct Followed {
    std::shared_ptr<Job> job;
    v1::StoredJob stored_job;
    size_t stored = 0;     // Tokens.
    bool writing = false;  // A write is queued.
  };

  void Loop();
  void Save(Followed& followed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Store* const store_;
  const std::function<bool()> stopping_jobs_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Followed> followed_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_DETACHED_JOBS_H_
