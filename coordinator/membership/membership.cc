// SPDX-License-Identifier: Apache-2.0
#include "coordinator/membership/membership.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/host_address.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;
using cluster::kMaxEpoch;

const std::string& MachineOf(const v1::RegisterRequest& request) {
  return request.machine().empty() ? request.host() : request.machine();
}

}  // namespace

int RanksOnMachine(const std::vector<Member>& members, size_t index) {
  return static_cast<int>(
      std::count_if(members.begin(), members.end(), [&](const Member& member) {
        return member.machine == members[index].machine;
      }));
}

int CountMachines(const std::vector<Member>& members) {
  std::set<std::string> machines;
  for (const Member& member : members) machines.insert(member.machine);
  return static_cast<int>(machines.size());
}

uint64_t ShareOf(const std::vector<Member>& members, size_t index,
                 std::vector<v1::ResourcePool> Member::*pools) {
  const Member& self = members[index];
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const v1::ResourcePool& pool : self.*pools) {
    uint64_t amount = pool.amount();
    uint64_t sharing = 1;
    for (size_t i = 0; i < members.size() && !pool.id().empty(); ++i) {
      if (i == index || members[i].machine != self.machine) continue;
      for (const v1::ResourcePool& other : members[i].*pools) {
        if (other.id() != pool.id()) continue;
        ++sharing;
        // The largest figure: one that replaces another registers while the
        // survivors, which load anew, still hold their shards.
        amount = std::max(amount, other.amount());
      }
    }
    least = std::min(least, amount / sharing);
  }
  return (self.*pools).empty() ? 0 : least;
}

std::string Member::Description() const {
  return absl::StrCat("worker ", rank, " (", address, ", pid ", pid, ")");
}

Membership::Membership(Options options, absl::Time start, Now now)
    : options_(std::move(options)),
      now_(std::move(now)),
      last_epoch_(static_cast<uint64_t>(absl::ToUnixMicros(start))),
      last_member_id_(last_epoch_),
      seats_(options_.world_size) {}

absl::StatusOr<int> Membership::ChooseRank(
    const v1::RegisterRequest& request) const {
  const int world_size = options_.world_size;
  if (request.rank() < -1 || request.rank() >= world_size) {
    return absl::OutOfRangeError(absl::StrCat("worker at ", request.address(),
                                              ": rank ", request.rank(),
                                              ", want 0 to ", world_size - 1));
  }
  if (request.rank() >= 0) {
    const Seat& seat = seats_[request.rank()];
    if (seat.living() && seat.member->address != request.address()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "worker at ", request.address(), ": rank ", request.rank(),
          " is held by ", seat.member->Description(), ", which is alive"));
    }
    return request.rank();
  }
  int free_rank = -1;
  for (int rank = world_size - 1; rank >= 0; --rank) {
    const Seat& seat = seats_[rank];
    if (seat.living() && seat.member->address == request.address()) return rank;
    if (!seat.living()) free_rank = rank;
  }
  // Weights that the worker holds are of use for their rank alone.
  const uint32_t held_rank = request.held().request().layout().rank();
  if (request.has_held() && held_rank < static_cast<uint32_t>(world_size) &&
      !seats_[held_rank].living()) {
    return static_cast<int>(held_rank);
  }
  if (free_rank < 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("worker at ", request.address(), ": all ", world_size,
                     " ranks are held by living workers"));
  }
  return free_rank;
}

absl::Status Membership::CheckEpoch(uint64_t epoch,
                                    absl::string_view who) const {
  if (epoch <= kMaxEpoch) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(who, ": last epoch ", epoch, ", want at most ", kMaxEpoch));
}

absl::StatusOr<Member> Membership::Register(
    const v1::RegisterRequest& request) {
  RF_ASSIGN_OR_RETURN(const cluster::ServerAddress address,
                      cluster::ParseAddress(request.address()));
  if (address.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker at ", request.address(),
                     ": port 0, want the one that peers can reach"));
  }
  if (cluster::IsWildcard(address.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker at ", request.address(),
                     ": no address that peers can dial, want --advertise "
                     "HOST:PORT"));
  }
  if (request.build().build_id() != options_.build.build_id()) {
    const std::string who = request.rank() < 0
                                ? std::string("worker")
                                : absl::StrCat("worker ", request.rank());
    return absl::FailedPreconditionError(absl::StrCat(
        who, " at ", request.address(), ": build ", request.build().build_id(),
        ", want ", options_.build.build_id(),
        "; install the same build on all hosts"));
  }
  RF_RETURN_IF_ERROR(CheckEpoch(request.last_epoch(),
                                absl::StrCat("worker at ", request.address())));
  // Such workers would put each other out for ever.
  for (const Seat& seat : seats_) {
    if (seat.living() && seat.member->address == request.address() &&
        seat.member->machine != MachineOf(request)) {
      return absl::AlreadyExistsError(absl::StrCat(
          "worker at ", request.address(), " on host ", request.host(), ": ",
          seat.member->Description(), " on host ", seat.member->host,
          ", another machine, is known by this address; want --advertise "
          "HOST:PORT"));
    }
  }
  RF_ASSIGN_OR_RETURN(const int rank, ChooseRank(request));
  // One process holds one rank: what it held before is given up.
  for (Seat& seat : seats_) {
    if (seat.member.has_value() && seat.member->address == request.address()) {
      seat.member.reset();
    }
  }
  last_epoch_ = std::max(last_epoch_, request.last_epoch());
  Member member;
  member.member_id = ++last_member_id_;
  member.rank = rank;
  member.address = request.address();
  member.host = request.host();
  member.machine = MachineOf(request);
  member.pid = request.pid();
  member.build = request.build();
  member.memory.assign(request.memory().begin(), request.memory().end());
  member.cpus.assign(request.cpus().begin(), request.cpus().end());
  member.last_epoch = request.last_epoch();
  if (request.has_held()) {
    member.held = std::make_shared<const v1::HeldShard>(request.held());
  }
  member.heard = now_();
  seats_[rank].member = member;
  seats_[rank].lease_end = Deadline::After(options_.lease, member.heard).when();
  ++registrations_;
  return member;
}

absl::Status Membership::Heartbeat(const v1::HeartbeatRequest& request) {
  for (Seat& seat : seats_) {
    if (!seat.living() || seat.member->member_id != request.member_id()) {
      continue;
    }
    RF_RETURN_IF_ERROR(
        CheckEpoch(request.last_epoch(), seat.member->Description()));
    last_epoch_ = std::max(last_epoch_, request.last_epoch());
    seat.member->heard = now_();
    seat.member->figures = request.figures();
    seat.lease_end = Deadline::After(options_.lease, seat.member->heard).when();
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("member ", request.member_id(),
                   " has no lease here: it ran out, or the coordinator was "
                   "restarted; register again"));
}

std::vector<Member> Membership::Expire() {
  std::vector<Member> lost;
  const auto now = now_();
  for (Seat& seat : seats_) {
    if (!seat.living() || now < seat.lease_end) continue;
    seat.member->lost = true;
    lost.push_back(*seat.member);
  }
  return lost;
}

void Membership::Prolong(absl::Duration time) {
  for (Seat& seat : seats_) {
    seat.lease_end = Deadline::After(time, seat.lease_end).when();
  }
}

void Membership::Evict(uint64_t member_id) {
  for (Seat& seat : seats_) {
    if (seat.living() && seat.member->member_id == member_id) {
      seat.member->lost = true;
    }
  }
}

bool Membership::complete() const { return MissingRanks().empty(); }

std::vector<Member> Membership::Members() const {
  std::vector<Member> members;
  for (const Seat& seat : seats_) {
    if (seat.member.has_value()) members.push_back(*seat.member);
  }
  return members;
}

std::vector<int> Membership::MissingRanks() const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < seats_.size(); ++rank) {
    if (!seats_[rank].living()) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

}  // namespace ringfleet::coordinator
