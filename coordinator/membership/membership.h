// SPDX-License-Identifier: Apache-2.0
// The holders of a fleet's ranks. A worker registers for a rank and keeps it by
// heartbeats. A lease that runs out, or a connection that breaks, frees the
// rank for a replacement. Pure logic: the clock is injected and the owner
// serialises the calls.
#ifndef RINGFLEET_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_
#define RINGFLEET_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/wire/frame.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

// One registered worker process.
struct Member {
  uint64_t member_id = 0;  // Number of this registration; never used twice.
  int rank = 0;
  std::string address;  // HOST:PORT for peers and the coordinator.
  std::string host;     // Name of its machine.
  std::string machine;  // Id of its machine. One name may stand for several.
  uint64_t pid = 0;
  v1::BuildInfo build;
  std::vector<v1::ResourcePool> memory;  // Bytes, as registered.
  std::vector<v1::ResourcePool> cpus;    // As registered.
  // The weights that it held as it registered. Null: none.
  std::shared_ptr<const v1::HeldShard> held;
  uint64_t last_epoch = 0;    // As registered.
  bool lost = false;          // The rank waits for a replacement.
  v1::WorkerFigures figures;  // As the last heartbeat told.
  // Time of the registration or of the last heartbeat since.
  cluster::Deadline::Clock::time_point heard;

  // "worker 1 (10.0.0.2:50052, pid 4711)"
  std::string Description() const;
};

// Returns the number of members on the machine of members[index], that member
// included.
int RanksOnMachine(const std::vector<Member>& members, size_t index);

// Returns the number of machines that the members run on.
int CountMachines(const std::vector<Member>& members);

// Returns the part of members[index] in its pools of memory or CPUs: the
// smallest that it gets if the members of each pool share the pool equally. 0:
// the member has no pools.
uint64_t ShareOf(const std::vector<Member>& members, size_t index,
                 std::vector<v1::ResourcePool> Member::*pools);

class Membership {
 public:
  using Now = std::function<cluster::Deadline::Clock::time_point()>;

  struct Options {
    int world_size = 1;
    v1::BuildInfo build;  // Build of all members; only build_id is compared.
    absl::Duration lease = absl::Seconds(10);
  };

  // `start` is the wall clock. Epochs and member ids each count up from its
  // microseconds, so that a restarted coordinator gives no number again: a
  // heartbeat for the predecessor's registration finds nothing. If the clock is
  // behind the predecessor's, the epochs that members report move the count of
  // epochs. Workers refuse an epoch unless it is later than all that they have
  // seen.
  Membership(Options options, absl::Time start, Now now);

  // Gives the member its rank, or any free rank for -1: the one whose weights
  // it holds, else the lowest. A registration from a registered address
  // replaces the earlier registration, because only one process listens there.
  // The registration is a retry, or a restart after a crash.
  //
  // Errors: FAILED_PRECONDITION: another build. ALREADY_EXISTS: a living worker
  // holds the rank, or every rank, or the address on another machine.
  // OUT_OF_RANGE: no such rank. INVALID_ARGUMENT: no address that others can
  // dial, or a last epoch above cluster::kMaxEpoch.
  absl::StatusOr<Member> Register(const v1::RegisterRequest& request);

  // Renews a lease. NOT_FOUND: the lease has ended; register again.
  // INVALID_ARGUMENT: a last epoch above cluster::kMaxEpoch.
  absl::Status Heartbeat(const v1::HeartbeatRequest& request);

  // Marks members whose lease has run out as lost, and returns them.
  std::vector<Member> Expire();

  // Prolongs all leases, because this process could hear nobody for `time`.
  void Prolong(absl::Duration time);

  // Marks a member whose process is gone as lost. Does nothing if it has been
  // lost or replaced in the meantime.
  void Evict(uint64_t member_id);

  // Returns true if every rank has a living member.
  bool complete() const;

  // Returns the members that have registered, lost ones included, by rank.
  std::vector<Member> Members() const;

  // Returns the ranks without a living member, ascending.
  std::vector<int> MissingRanks() const;

  // Returns a number larger than every earlier number, and than every epoch
  // that a member has reported.
  uint64_t NewEpoch() { return ++last_epoch_; }

  // Grows with every registration.
  uint64_t registrations() const { return registrations_; }

  absl::Duration HeartbeatInterval() const { return options_.lease / 4; }
  const Options& options() const { return options_; }

 private:
  struct Seat {
    std::optional<Member> member;
    cluster::Deadline::Clock::time_point lease_end;
    bool living() const { return member.has_value() && !member->lost; }
  };

  absl::StatusOr<int> ChooseRank(const v1::RegisterRequest& request) const;
  // Checks the last epoch that `who` reports.
  absl::Status CheckEpoch(uint64_t epoch, absl::string_view who) const;

  const Options options_;
  const Now now_;
  uint64_t last_epoch_;
  uint64_t last_member_id_;
  uint64_t registrations_ = 0;
  std::vector<Seat> seats_;  // By rank.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_
