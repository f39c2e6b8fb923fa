// SPDX-License-Identifier: Apache-2.0
// Decides when a fleet may form an epoch, and of which members.
//
// A fleet begins with a member for every rank. After that, whole data groups
// that hold all experts between them may form an epoch without the rest. An
// epoch that fails is followed by a pause, which doubles until an epoch runs a
// step. After a load error that trying again cannot cure (a bad or different
// checkpoint, too little memory) the next epoch waits for a registration.
#ifndef RINGFLEET_COORDINATOR_FLEET_FORMATION_H_
#define RINGFLEET_COORDINATOR_FLEET_FORMATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/model/expert_layout.h"
#include "cluster/process/deadline.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "coordinator/membership/membership.h"
#include "kernels/mutex.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

// Returns true if `epoch` lacks ranks of the fleet.
inline bool IsNarrowed(const FleetOptions& fleet, const FleetEpoch& epoch) {
  return static_cast<int>(epoch.members().size()) < fleet.mesh.world_size();
}

// Thread-safe. Calls no other object while it holds its lock.
class Formation {
 public:
  // `fleet` must outlive this object. Members must be of `build`.
  Formation(const FleetOptions& fleet, v1::BuildInfo build);

  // Errors: those of Membership::Register.
  absl::StatusOr<v1::RegisterResponse> Register(
      const v1::RegisterRequest& request);
  // Errors: those of Membership::Heartbeat.
  absl::Status Heartbeat(const v1::HeartbeatRequest& request);

  // Marks members whose lease has run out as lost, and returns them.
  std::vector<Member> Expire();
  // See Membership::Prolong.
  void ProlongLeases(absl::Duration time);

  // Returns the members that have registered, lost ones included, by rank.
  std::vector<Member> Members() const;
  // Returns the ranks without a living member, ascending.
  std::vector<int> MissingRanks() const;
  // Returns true if every rank has a living member.
  bool complete() const;
  // Returns the registrations so far, or nothing if no epoch of all ranks may
  // be formed.
  std::optional<uint64_t> WholeSince() const;

  struct GoneMember {
    uint64_t member_id = 0;
    std::string why;
  };
  // Returns the members of an epoch that are lost, or whose rank another
  // process holds.
  std::vector<GoneMember> FindGone(const std::vector<Member>& members) const;

  // An epoch that can be formed.
  struct NextEpoch {
    FleetOptions options;
    uint64_t id = 0;
    std::vector<Member> members;
    std::string fingerprint;  // The fleet's first epoch's; empty before it.
  };

  // Returns true if the living members can form an epoch, at once or after a
  // pause. `layout` has the experts of the whole fleet.
  bool CanForm(const cluster::ExpertLayout& layout) const;
  // Returns the next epoch, or nothing if none may be formed yet. Until an
  // epoch has been ready, it has FirstLayout of its members instead of
  // `layout`.
  std::optional<NextEpoch> TakeNext(const cluster::ExpertLayout& layout);
  // Returns an epoch of all ranks with the id of a narrowed one. The narrowed
  // epoch serves while its missing ranks load for the returned epoch. Returns
  // nothing if a rank has no living member.
  std::optional<NextEpoch> Whole(uint64_t id,
                                 const cluster::ExpertLayout& layout) const;

  // Notes that the epoch is ready, with this checkpoint.
  void NoteReady(const std::string& fingerprint);

  // The course of an epoch that has ended.
  struct Ended {
    bool handed_over = false;  // For the sake of a whole epoch; no failure.
    bool planned = false;      // At least one step was planned.
    bool stepped = false;      // At least one step was done.
  };
  void NoteEnd(const FleetEpoch& epoch, const Ended& ended);

  // Returns true if no epoch follows a failed one until a worker registers, or
  // ever because the start of a fleet that starts once has failed.
  bool HasGivenUp() const;

 private:
  struct Choice {
    FleetOptions options;
    std::vector<Member> members;
  };
  bool GivenUp() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  FleetOptions WholeFleet(const cluster::ExpertLayout& layout) const;
  // Ranks missing from the next epoch: ranks without a living member, and ranks
  // that failed the last growth if nobody has registered since.
  std::vector<int> AbsentRanks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Choice> Choose(const cluster::ExpertLayout& layout) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const FleetOptions& fleet_;

  mutable Mutex mu_;
  Membership membership_ ABSL_GUARDED_BY(mu_);
  std::string fingerprint_ ABSL_GUARDED_BY(mu_);
  // Ranks that the last handover has added; empty once a whole epoch has done a
  // step.
  std::vector<int> grown_ranks_ ABSL_GUARDED_BY(mu_);
  // Ranks that epochs do without as long as the number of registrations stays.
  std::vector<int> excluded_ranks_ ABSL_GUARDED_BY(mu_);
  uint64_t excluded_registrations_ ABSL_GUARDED_BY(mu_) = 0;
  // Registrations seen when the last epoch was formed.
  uint64_t formed_registrations_ ABSL_GUARDED_BY(mu_) = 0;
  // The next epoch waits for this time and this number of registrations.
  absl::Duration pause_ ABSL_GUARDED_BY(mu_);
  cluster::Deadline form_after_ ABSL_GUARDED_BY(mu_);
  uint64_t form_registrations_ ABSL_GUARDED_BY(mu_) = 0;
  // FleetOptions::start_once holds, and an epoch failed before any was ready.
  bool start_failed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FORMATION_H_
