// SPDX-License-Identifier: Apache-2.0
// Sends the events of a job to one caller, as fast as the caller takes them. A
// stream holds no thread: it looks at its job when the job has changed, and
// when an event is sent.
#ifndef RINGFLEET_COORDINATOR_SERVICE_JOB_STREAM_H_
#define RINGFLEET_COORDINATOR_SERVICE_JOB_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "cluster/process/status.h"
#include "cluster/rpc/active_calls.h"
#include "coordinator/jobs/job.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Turns a job's changes into events. Not thread-safe.
template <typename Event>
class JobEvents {
 public:
  virtual ~JobEvents() = default;
  // Returns the next event, or the status that ends the stream. Neither
  // (monostate): the job must change first.
  virtual std::variant<std::monostate, Event, absl::Status> Next(
      const Job& job) = 0;
};

// Thread-safe. Lives until gRPC is done with the call.
template <typename Event>
class JobStream final : public grpc::ServerWriteReactor<Event>,
                        public JobObserver {
 public:
  // Begins to send. `on_gone` is called once if the caller leaves before the
  // end. `on_done` is called last. `calls` must outlive the stream.
  static JobStream* Start(std::shared_ptr<Job> job,
                          std::unique_ptr<JobEvents<Event>> events,
                          cluster::ActiveCalls* calls,
                          std::function<void()> on_gone,
                          std::function<void()> on_done) {
    const auto stream = std::shared_ptr<JobStream>(
        new JobStream(std::move(job), std::move(events), calls,
                      std::move(on_gone), std::move(on_done)));
    stream->self_ = stream;
    stream->job_->Observe(stream);
    stream->Advance(/*may_leave=*/true);
    return stream.get();
  }

  // Never calls `on_gone`: the caller of this function may deliver events, and
  // `on_gone` ends a job, which delivers too. Whoever notices that the caller
  // has gone advances after that.
  void OnJobChange() override { Advance(/*may_leave=*/false); }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mu_);
      writing_ = false;
      gone_ |= !ok;
    }
    Advance(/*may_leave=*/true);
  }

  void OnCancel() override {
    {
      MutexLock lock(&mu_);
      gone_ = true;
    }
    Advance(/*may_leave=*/true);
  }

  void OnDone() override {
    on_done_();
    self_.reset();  // The last act: other owners only look at the job.
  }

 private:
  JobStream(std::shared_ptr<Job> job, std::unique_ptr<JobEvents<Event>> events,
            cluster::ActiveCalls* calls, std::function<void()> on_gone,
            std::function<void()> on_done)
      : job_(std::move(job)),
        scope_(calls),
        on_gone_(std::move(on_gone)),
        on_done_(std::move(on_done)),
        events_(std::move(events)) {}

  // Sends the next event unless one is being sent. Leaves the job of a caller
  // that has gone if `may_leave`.
  void Advance(bool may_leave) {
    bool left = false;
    {
      MutexLock lock(&mu_);
      if (writing_ || finished_) return;
      if (gone_) {
        if (!may_leave) return;
        finished_ = left = true;
      } else {
        auto next = events_->Next(*job_);
        if (auto* event = std::get_if<Event>(&next)) {
          event_ = std::move(*event);
          writing_ = true;
          this->StartWrite(&event_);
        } else if (const auto* status = std::get_if<absl::Status>(&next)) {
          finished_ = true;
          this->Finish(cluster::ToGrpc(*status));
        }
      }
    }
    if (!left) return;
    on_gone_();
    this->Finish(cluster::ToGrpc(absl::CancelledError(
        absl::StrCat("the caller of job ", job_->id(), " has left"))));
  }

  const std::shared_ptr<Job> job_;
  const cluster::ActiveCalls::Scope scope_;
  const std::function<void()> on_gone_;
  const std::function<void()> on_done_;

  Mutex mu_;
  const std::unique_ptr<JobEvents<Event>> events_ ABSL_PT_GUARDED_BY(mu_);
  Event event_ ABSL_GUARDED_BY(mu_);  // Being sent.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<JobStream> self_;  // Until OnDone.
};

// Ends a call with `status` without an event.
template <typename Event>
class RefusedStream final : public grpc::ServerWriteReactor<Event> {
 public:
  explicit RefusedStream(const absl::Status& status) {
    this->Finish(cluster::ToGrpc(status));
  }
  void OnDone() override { delete this; }
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_JOB_STREAM_H_
