// SPDX-License-Identifier: Apache-2.0
// How a fleet that goes on without some of its workers becomes whole again.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/log.h"
#include "coordinator/fleet.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// Whether sequences still run is looked at this often.
constexpr absl::Duration kQuietPoll = absl::Milliseconds(20);

}  // namespace

void Fleet::Grower() {
  uint64_t tried = 0;  // Registrations seen when the last attempt failed.
  while (true) {
    std::shared_ptr<Epoch> epoch;
    uint64_t registrations = 0;
    {
      MutexLock lock(&mu_);
      while (!stopping_ &&
             !(state_ == v1::FLEET_STATE_READY && Narrowed(*epoch_) &&
               membership_.complete() && membership_.registrations() > tried)) {
        changed_.Wait(&mu_);
      }
      if (stopping_) return;
      epoch = epoch_;
      registrations = membership_.registrations();
    }
    const absl::Status loaded = LoadMissing(*epoch);
    if (!loaded.ok()) {
      RF_LOG(kWarning, "the fleet stays as it is: ", loaded.message());
      tried = registrations;
      continue;
    }
    HandOver(*epoch);
  }
}

absl::Status Fleet::LoadMissing(const Epoch& epoch) {
  std::shared_ptr<Epoch> ahead;
  std::vector<int> missing;
  {
    MutexLock lock(&mu_);
    if (stopping_ || !membership_.complete()) return WhyNotReady();
    const std::vector<cluster::Member> members = membership_.Members();
    for (const cluster::Member& member : members) {
      if (std::none_of(epoch.members().begin(), epoch.members().end(),
                       [&](const cluster::Member& serving) {
                         return serving.rank == member.rank;
                       })) {
        missing.push_back(member.rank);
      }
    }
    ahead = ahead_ = std::make_shared<Epoch>(WholeFleet(), epoch.id(), members,
                                             fingerprint_, [] {});
  }
  const absl::Status status = ahead->LoadAhead(missing);
  MutexLock lock(&mu_);
  ahead_.reset();
  return status;
}

void Fleet::HandOver(Epoch& epoch) {
  MutexLock lock(&mu_);
  const auto goes_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !stopping_ && epoch_.get() == &epoch && scheduler_ != nullptr;
  };
  if (!goes_on()) return;
  scheduler_->Hold(true);
  while (goes_on() && membership_.complete() &&
         !(scheduler_->quiet() && bench_ == nullptr)) {
    changed_.WaitUntil(&mu_, Deadline::After(kQuietPoll).when());
  }
  if (!goes_on()) return;
  if (!membership_.complete()) {
    scheduler_->Hold(false);
    epoch.Wake();
    return;
  }
  handing_over_ = true;
  mu_.Unlock();
  epoch.Stop(absl::UnavailableError("all workers are there again"));
  mu_.Lock();
  // What follows is another epoch's.
  while (!stopping_ && epoch_.get() == &epoch) changed_.Wait(&mu_);
}

void Fleet::TakeOver() {
  std::vector<RequestUpdate> refused;
  {
    MutexLock lock(&mu_);
    for (auto& request : std::exchange(handed_over_, {})) {
      const absl::Status status = scheduler_->Submit(request);
      if (!status.ok()) refused.push_back({std::move(request), status});
    }
  }
  for (const RequestUpdate& update : refused) update.Deliver();
}

void Fleet::FailHandedOver(const absl::Status& cause) {
  std::vector<std::shared_ptr<const Request>> requests;
  {
    MutexLock lock(&mu_);
    requests.swap(handed_over_);
  }
  for (auto& request : requests) {
    RequestUpdate{std::move(request), cause}.Deliver();
  }
}

}  // namespace ringfleet::coordinator
