// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/membership_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/process/log.h"
#include "cluster/process/status.h"
#include "cluster/process/thread_limit.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// How soon the thread that tells watchers notices that none is left.
constexpr absl::Duration kWatchPoll = absl::Milliseconds(100);
constexpr absl::Duration kThreadCheckInterval = absl::Seconds(2);
constexpr absl::Duration kThreadWarningInterval = absl::Minutes(1);

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(cluster::ToGrpc(status));
  return reactor;
}

}  // namespace

// One call of Watch. Deletes itself once the call is done.
class MembershipService::Watcher final
    : public grpc::ServerWriteReactor<v1::ClusterState> {
 public:
  explicit Watcher(MembershipService* service)
      : service_(service), scope_(&service->calls_) {}

  // Writes the state unless a later one was given before. `version` counts the
  // changes of the fleet up to the state.
  void Tell(uint64_t version, const v1::ClusterState& state) {
    {
      MutexLock lock(&mu_);
      if (version <= version_) return;
      version_ = version;
      next_ = state;
    }
    GoOn();
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(&mu_);
      if (!end_.has_value()) end_ = status;
    }
    GoOn();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mu_);
      writing_ = false;
      if ((!ok || state_.state() == v1::FLEET_STATE_STOPPING) &&
          !end_.has_value()) {
        end_ = grpc::Status::OK;
      }
    }
    GoOn();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
    {
      MutexLock lock(&service_->mu_);
      service_->watchers_.erase(this);
    }
    delete this;
  }

 private:
  // Starts the next operation if none is under way.
  void GoOn() {
    std::optional<grpc::Status> end;
    {
      MutexLock lock(&mu_);
      if (writing_ || ended_) return;
      if (end_.has_value()) {
        ended_ = true;
        end = end_;
      } else if (next_.has_value()) {
        writing_ = true;
        state_ = *std::move(next_);
        next_.reset();
      } else {
        return;
      }
    }
    if (end.has_value()) {
      Finish(*end);
    } else {
      StartWrite(&state_);
    }
  }

  MembershipService* const service_;
  const cluster::ActiveCalls::Scope scope_;

  Mutex mu_;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<v1::ClusterState> next_ ABSL_GUARDED_BY(mu_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  v1::ClusterState state_;  // Being written; of whoever has set writing_.
};

MembershipService::MembershipService(Fleet* fleet)
    : fleet_(fleet), teller_([this] { TellWatchers(); }) {}

MembershipService::~MembershipService() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  teller_.join();
}

grpc::ServerUnaryReactor* MembershipService::Register(
    grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
    v1::RegisterResponse* response) {
  auto registered = fleet_->Register(*request);
  if (registered.ok()) *response = *std::move(registered);
  return Finish(context, registered.status());
}

grpc::ServerUnaryReactor* MembershipService::Heartbeat(
    grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
    v1::HeartbeatResponse*) {
  CheckThreads();
  return Finish(context, fleet_->Heartbeat(*request));
}

grpc::ServerWriteReactor<v1::ClusterState>* MembershipService::Watch(
    grpc::CallbackServerContext*, const v1::WatchRequest*) {
  auto* const watcher = new Watcher(this);
  bool refused = false;
  {
    MutexLock lock(&mu_);
    refused = watchers_.size() >= kMaxWatches;
    if (!refused) watchers_.insert(watcher);
    changed_.NotifyAll();
  }
  if (refused) {
    watcher->End({grpc::StatusCode::RESOURCE_EXHAUSTED,
                  absl::StrCat(kMaxWatches, " watches are under way")});
    return watcher;
  }
  uint64_t version = 0;
  fleet_->WaitForChange(&version, Deadline::After(absl::ZeroDuration()));
  watcher->Tell(version, fleet_->State());
  return watcher;
}

void MembershipService::TellWatchers() {
  uint64_t version = 0;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!stopping_ && watchers_.empty()) changed_.Wait(&mu_);
      if (stopping_) return;
    }
    if (!fleet_->WaitForChange(&version, Deadline::After(kWatchPoll))) continue;
    const v1::ClusterState state = fleet_->State();
    MutexLock lock(&mu_);
    for (Watcher* const watcher : watchers_) watcher->Tell(version, state);
  }
}

void MembershipService::CheckThreads() {
  {
    MutexLock lock(&mu_);
    if (!check_threads_at_.Expired()) return;
    check_threads_at_ = Deadline::After(kThreadCheckInterval);
  }
  const absl::Status status = cluster::CheckThreads(1);
  MutexLock lock(&mu_);
  if (status.ok() || !warn_of_threads_at_.Expired()) return;
  warn_of_threads_at_ = Deadline::After(kThreadWarningInterval);
  RF_LOG(kWarning, status.message(), "; calls are refused until others end");
}

}  // namespace ringfleet::coordinator
