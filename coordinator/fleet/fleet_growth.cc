// SPDX-License-Identifier: Apache-2.0
// How a fleet that goes on without some of its workers becomes whole again.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/log.h"
#include "coordinator/fleet/fleet.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// Whether sequences still run is looked at this often, and for so long nobody
// new begins meanwhile; then all go on for as long before it is tried again.
constexpr absl::Duration kQuietPoll = absl::Milliseconds(20);
constexpr absl::Duration kLongestHold = absl::Seconds(30);

}  // namespace

void Fleet::Grower() {
  uint64_t tried = 0;  // Registrations seen when the last attempt failed.
  Deadline not_before = Deadline::After(absl::ZeroDuration());
  while (true) {
    std::shared_ptr<FleetEpoch> epoch;
    uint64_t registrations = 0;
    {
      MutexLock lock(&mu_);
      while (!stopping_ &&
             !(state_ == v1::FLEET_STATE_READY && Narrowed(*epoch_) &&
               AbsentRanks().empty() && membership_.registrations() > tried &&
               not_before.Expired())) {
        if (not_before.Expired()) {
          changed_.Wait(&mu_);
        } else {
          changed_.WaitUntil(&mu_, not_before.when());
        }
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
    if (!HandOver(*epoch)) not_before = Deadline::After(kLongestHold);
  }
}

absl::Status Fleet::LoadMissing(const FleetEpoch& epoch) {
  std::shared_ptr<FleetEpoch> ahead;
  std::vector<int> missing;
  {
    MutexLock lock(&mu_);
    if (stopping_ || epoch_.get() != &epoch || scheduler_ == nullptr ||
        !membership_.complete()) {
      return WhyNotReady();
    }
    const std::vector<cluster::Member> members = membership_.Members();
    for (const cluster::Member& member : members) {
      if (std::none_of(epoch.members().begin(), epoch.members().end(),
                       [&](const cluster::Member& serving) {
                         return serving.rank == member.rank;
                       })) {
        missing.push_back(member.rank);
      }
    }
    ahead = ahead_ = std::make_shared<FleetEpoch>(WholeFleet(), epoch.id(),
                                                  members, fingerprint_, [] {});
  }
  const absl::Status status = ahead->LoadAhead(missing);
  MutexLock lock(&mu_);
  ahead_.reset();
  Changed();
  return status;
}

bool Fleet::HandOver(FleetEpoch& epoch) {
  const Deadline deadline = Deadline::After(kLongestHold);
  MutexLock lock(&mu_);
  const auto serves = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !stopping_ && epoch_.get() == &epoch && scheduler_ != nullptr;
  };
  const auto quiet = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return scheduler_->quiet() && bench_ == nullptr;
  };
  if (!serves()) return true;
  scheduler_->Hold(true);
  while (serves() && membership_.complete() && !quiet() &&
         !deadline.Expired()) {
    changed_.WaitUntil(&mu_, Deadline::After(kQuietPoll).when());
  }
  if (!serves()) return true;
  if (!membership_.complete() || !quiet()) {
    scheduler_->Hold(false);
    epoch.Wake();
    return false;
  }
  handing_over_ = true;
  grown_ranks_.clear();
  for (int rank = 0; rank < options_.mesh.world_size(); ++rank) {
    if (std::none_of(epoch.members().begin(), epoch.members().end(),
                     [&](const cluster::Member& serving) {
                       return serving.rank == rank;
                     })) {
      grown_ranks_.push_back(rank);
    }
  }
  mu_.Unlock();
  epoch.Stop(absl::UnavailableError("all workers are there again"));
  mu_.Lock();
  // What follows is another epoch's.
  while (!stopping_ && epoch_.get() == &epoch) changed_.Wait(&mu_);
  return true;
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
