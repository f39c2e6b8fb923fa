// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/formation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/first_layout.h"
#include "coordinator/fleet/survivors.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// Between failed epochs of the same workers.
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(30);

}  // namespace

Formation::Formation(const FleetOptions& fleet, v1::BuildInfo build)
    : fleet_(fleet),
      membership_({fleet.mesh.world_size(), std::move(build), fleet.lease},
                  absl::Now(), [] { return Deadline::Clock::now(); }),
      pause_(kFirstPause),
      form_after_(Deadline::Clock::now()) {}

absl::StatusOr<v1::RegisterResponse> Formation::Register(
    const v1::RegisterRequest& request) {
  v1::RegisterResponse response;
  MutexLock lock(&mu_);
  RF_ASSIGN_OR_RETURN(const Member member, membership_.Register(request));
  RF_LOG(kInfo, member.Description(), " on host ", member.host,
         " has registered");
  response.set_member_id(member.member_id);
  response.set_rank(member.rank);
  response.set_world_size(fleet_.mesh.world_size());
  response.set_coordinator_id(fleet_.coordinator_id);
  response.set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(membership_.HeartbeatInterval()));
  return response;
}

absl::Status Formation::Heartbeat(const v1::HeartbeatRequest& request) {
  MutexLock lock(&mu_);
  return membership_.Heartbeat(request);
}

std::vector<Member> Formation::Expire() {
  MutexLock lock(&mu_);
  return membership_.Expire();
}

void Formation::ProlongLeases(absl::Duration time) {
  MutexLock lock(&mu_);
  membership_.Prolong(time);
}

std::vector<Member> Formation::Members() const {
  MutexLock lock(&mu_);
  return membership_.Members();
}

std::vector<int> Formation::MissingRanks() const {
  MutexLock lock(&mu_);
  return membership_.MissingRanks();
}

bool Formation::complete() const {
  MutexLock lock(&mu_);
  return membership_.complete();
}

std::optional<uint64_t> Formation::WholeSince() const {
  MutexLock lock(&mu_);
  if (!AbsentRanks().empty()) return std::nullopt;
  return membership_.registrations();
}

std::vector<Formation::GoneMember> Formation::FindGone(
    const std::vector<Member>& members) const {
  std::vector<GoneMember> gone;
  MutexLock lock(&mu_);
  for (const Member& holder : membership_.Members()) {
    for (const Member& member : members) {
      if (member.rank != holder.rank) continue;
      if (member.member_id != holder.member_id) {
        gone.push_back(
            {member.member_id,
             absl::StrCat("another process registered at ", holder.address)});
      } else if (holder.lost) {
        gone.push_back({member.member_id,
                        absl::StrCat("no heartbeat for ",
                                     absl::FormatDuration(fleet_.lease))});
      }
    }
  }
  return gone;
}

FleetOptions Formation::WholeFleet(const cluster::ExpertLayout& layout) const {
  FleetOptions options = fleet_;
  options.layout = layout;
  return options;
}

std::vector<int> Formation::AbsentRanks() const {
  std::vector<int> absent = membership_.MissingRanks();
  if (membership_.registrations() == excluded_registrations_) {
    absent.insert(absent.end(), excluded_ranks_.begin(), excluded_ranks_.end());
  }
  return absent;
}

std::optional<Formation::Choice> Formation::Choose(
    const cluster::ExpertLayout& layout) const {
  std::vector<Member> members = membership_.Members();
  const std::vector<int> absent = AbsentRanks();
  if (!absent.empty() && !fingerprint_.empty()) {
    absl::StatusOr<Survivors> survivors =
        FindSurvivors(WholeFleet(layout), absent);
    if (survivors.ok()) {
      std::erase_if(members, [&](const Member& member) {
        return !std::binary_search(survivors->ranks.begin(),
                                   survivors->ranks.end(), member.rank);
      });
      return Choice{std::move(survivors->options), std::move(members)};
    }
  }
  if (!membership_.complete()) return std::nullopt;
  return Choice{WholeFleet(layout), std::move(members)};
}

bool Formation::CanForm(const cluster::ExpertLayout& layout) const {
  MutexLock lock(&mu_);
  return Choose(layout).has_value();
}

std::optional<Formation::NextEpoch> Formation::TakeNext(
    const cluster::ExpertLayout& layout) {
  MutexLock lock(&mu_);
  if (!form_after_.Expired() || GivenUp()) {
    return std::nullopt;
  }
  std::optional<Choice> choice = Choose(layout);
  if (!choice.has_value()) return std::nullopt;
  if (fingerprint_.empty()) {
    FirstLayout first = ChooseFirstLayout(choice->options, choice->members);
    if (first.layout != choice->options.layout) {
      RF_LOG(kInfo, "experts stay where the workers hold them");
    }
    if (!first.why_not.empty()) {
      RF_LOG(kWarning, "the weights load again: ", first.why_not);
    }
    choice->options.layout = std::move(first.layout);
  }
  formed_registrations_ = membership_.registrations();
  return NextEpoch{std::move(choice->options), membership_.NewEpoch(),
                   std::move(choice->members), fingerprint_};
}

std::optional<Formation::NextEpoch> Formation::Whole(
    uint64_t id, const cluster::ExpertLayout& layout) const {
  MutexLock lock(&mu_);
  if (!membership_.complete()) return std::nullopt;
  return NextEpoch{WholeFleet(layout), id, membership_.Members(), fingerprint_};
}

void Formation::NoteReady(const std::string& fingerprint) {
  MutexLock lock(&mu_);
  fingerprint_ = fingerprint;
}

void Formation::NoteEnd(const FleetEpoch& epoch, const Ended& ended) {
  const std::vector<uint64_t> lost = epoch.LostMembers();
  const bool permanent = epoch.permanent();
  const bool narrowed = IsNarrowed(fleet_, epoch);
  MutexLock lock(&mu_);
  for (const uint64_t member_id : lost) membership_.Evict(member_id);
  if (ended.planned) pause_ = kFirstPause;
  if (ended.stepped && !narrowed) grown_ranks_.clear();
  if (ended.handed_over) {
    grown_ranks_.clear();
    for (int rank = 0; rank < fleet_.mesh.world_size(); ++rank) {
      if (std::none_of(
              epoch.members().begin(), epoch.members().end(),
              [&](const Member& member) { return member.rank == rank; })) {
        grown_ranks_.push_back(rank);
      }
    }
    form_after_ = Deadline::After(absl::ZeroDuration());
    return;
  }
  start_failed_ |= fleet_.start_once && fingerprint_.empty();
  form_registrations_ = permanent ? formed_registrations_ + 1 : 0;
  if (!narrowed && !grown_ranks_.empty()) {
    excluded_ranks_ = std::exchange(grown_ranks_, {});
    excluded_registrations_ = membership_.registrations();
    form_registrations_ = 0;
  }
  form_after_ = Deadline::After(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
}

bool Formation::GivenUp() const {
  return start_failed_ || form_registrations_ > membership_.registrations();
}

bool Formation::HasGivenUp() const {
  MutexLock lock(&mu_);
  return GivenUp();
}

}  // namespace ringfleet::coordinator
