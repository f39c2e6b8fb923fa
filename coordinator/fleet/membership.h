// SPDX-License-Identifier: Apache-2.0
// Who holds which rank. A worker registers for a rank and keeps it by
// heartbeats; a lease that runs out, or a connection that breaks, frees the
// rank for a replacement. Pure logic: the clock is injected and the owner
// serialises the calls.
#ifndef RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_H_
#define RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
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
  uint64_t member_id = 0;  // Of this registration; never used twice.
  int rank = 0;
  std::string address;  // HOST:PORT where peers and the coordinator reach it.
  std::string host;     // Name of its machine.
  uint64_t pid = 0;
  v1::BuildInfo build;
  uint64_t available_memory_bytes = 0;
  bool lost = false;  // Was here; the rank waits for a replacement.

  // "worker 1 (10.0.0.2:50052, pid 4711)"
  std::string Description() const;
};

class Membership {
 public:
  using Now = std::function<cluster::Deadline::Clock::time_point()>;

  struct Options {
    int world_size = 1;
    v1::BuildInfo build;  // What members must be; only build_id is compared.
    absl::Duration lease = absl::Seconds(10);
  };

  // `start` is the wall clock. Epochs, and apart from them member ids, count up
  // from its microseconds, so that a coordinator that was restarted does not
  // give a number again: a heartbeat for the predecessor's registration finds
  // nothing. Should its clock be behind the predecessor's, the epochs that
  // members report move the count of epochs: workers refuse one that is not
  // later than all they have seen.
  Membership(Options options, absl::Time start, Now now);

  // Gives the member its rank, or any free one for rank -1. A registration
  // from an address that is registered already replaces it, because only one
  // process listens there: a retry, or a restart after a crash.
  //
  // Errors: FAILED_PRECONDITION: another build. ALREADY_EXISTS: a living worker
  // holds the rank, or every rank. OUT_OF_RANGE: no such rank.
  // INVALID_ARGUMENT: no address, or a last epoch above cluster::kMaxEpoch.
  absl::StatusOr<Member> Register(const v1::RegisterRequest& request);

  // Renews a lease. NOT_FOUND: it has run out or never was; register again.
  // INVALID_ARGUMENT: a last epoch above cluster::kMaxEpoch.
  absl::Status Heartbeat(const v1::HeartbeatRequest& request);

  // Marks as lost whose lease has run out and returns these.
  std::vector<Member> Expire();

  // Marks a member as lost whose process is known to be gone. A member that
  // was lost or replaced in the meantime is left alone.
  void Evict(uint64_t member_id);

  // Every rank has a living member.
  bool complete() const;

  // Those that have registered, also lost ones, by rank.
  std::vector<Member> Members() const;

  // Ranks without a living member, ascending.
  std::vector<int> MissingRanks() const;

  // Larger than every number given before, and than every epoch that a member
  // has reported.
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
  // `who` has seen `epoch`.
  absl::Status CheckEpoch(uint64_t epoch, absl::string_view who) const;

  const Options options_;
  const Now now_;
  uint64_t last_epoch_;
  uint64_t last_member_id_;
  uint64_t registrations_ = 0;
  std::vector<Seat> seats_;  // By rank.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_MEMBERSHIP_H_
