// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/growth.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cluster/process/log.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// A handover looks at the sequences that run every kQuietPoll.
constexpr absl::Duration kQuietPoll = absl::Milliseconds(20);
// The text for waiting requests while they are held, and for running ones when
// their epoch ends.
constexpr char kWholeAgain[] =
    "all workers are there again; jobs go on with all of them";

}  // namespace

HandoverPace::HandoverPace(TimePoint opened, TimePoint loaded,
                           absl::Duration hold, absl::Duration limit)
    : loaded_(loaded),
      hold_(hold),
      longest_(
          std::max(hold, std::min(absl::FromChrono(loaded - opened), limit))) {}

HandoverPace::Turn HandoverPace::At(TimePoint now, bool quiet) const {
  const absl::Duration waited = absl::FromChrono(now - loaded_);
  if (quiet || waited >= longest_) return Turn::kEnd;
  absl::Duration rest;
  return absl::IDivDuration(waited, hold_, &rest) % 2 == 0 ? Turn::kHold
                                                           : Turn::kLetIn;
}

Growth::Growth(const FleetOptions& fleet, const Formation& formation,
               const ExpertMoves& moves, const BenchTurn& bench,
               FleetRequests& requests, ChangeCounter& changes)
    : fleet_(fleet),
      formation_(formation),
      moves_(moves),
      bench_(bench),
      requests_(requests),
      changes_(changes) {
  if (fleet_.mesh.data > 1) thread_ = std::thread([this] { Run(); });
}

Growth::~Growth() { Stop(absl::CancelledError("the fleet has ended")); }

void Growth::Open(std::shared_ptr<FleetEpoch> epoch) {
  MutexLock lock(&mu_);
  epoch_ = std::move(epoch);
  opened_ = Deadline::Clock::now();
}

bool Growth::Close(const absl::Status& cause) {
  std::shared_ptr<FleetEpoch> last;  // Given up without the lock.
  std::shared_ptr<FleetEpoch> ahead;
  bool handed_over = false;
  {
    MutexLock lock(&mu_);
    last = std::exchange(epoch_, nullptr);
    ahead = ahead_;
    handed_over = std::exchange(handing_over_, false);
  }
  // Its loads would meet the next epoch.
  if (ahead != nullptr) ahead->Stop(cause);
  return handed_over;
}

void Growth::Stop(const absl::Status& cause) {
  std::shared_ptr<FleetEpoch> ahead;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    ahead = ahead_;
  }
  changes_.Note();
  if (ahead != nullptr) ahead->Stop(cause);
  if (thread_.joinable()) thread_.join();
}

bool Growth::loading() const {
  MutexLock lock(&mu_);
  return ahead_ != nullptr;
}

bool Growth::Serves(const FleetEpoch& epoch) const {
  MutexLock lock(&mu_);
  return !stopping_ && epoch_.get() == &epoch;
}

bool Growth::stopping() const {
  MutexLock lock(&mu_);
  return stopping_;
}

std::shared_ptr<FleetEpoch> Growth::Narrowed(uint64_t tried,
                                             uint64_t* registrations) const {
  std::shared_ptr<FleetEpoch> epoch;
  {
    MutexLock lock(&mu_);
    epoch = epoch_;
  }
  if (epoch == nullptr || !IsNarrowed(fleet_, *epoch)) return nullptr;
  const std::optional<uint64_t> seen = formation_.WholeSince();
  if (!seen.has_value() || *seen <= tried) return nullptr;
  *registrations = *seen;
  return epoch;
}

void Growth::Run() {
  uint64_t tried = 0;  // Registrations seen when the last attempt failed.
  while (true) {
    const uint64_t seen = changes_.count();
    if (stopping()) return;
    uint64_t registrations = 0;
    const std::shared_ptr<FleetEpoch> epoch = Narrowed(tried, &registrations);
    if (epoch == nullptr) {
      changes_.Await(seen, Deadline::Infinite());
      continue;
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

absl::Status Growth::LoadMissing(const FleetEpoch& epoch) {
  std::optional<Formation::NextEpoch> next =
      formation_.Whole(epoch.id(), moves_.layout());
  if (!next.has_value()) {
    return absl::UnavailableError("a worker is gone again");
  }
  std::vector<int> missing;
  for (const Member& member : next->members) {
    if (std::none_of(epoch.members().begin(), epoch.members().end(),
                     [&](const Member& serving) {
                       return serving.rank == member.rank;
                     })) {
      missing.push_back(member.rank);
    }
  }
  const auto ahead = std::make_shared<FleetEpoch>(
      std::move(next->options), next->id, std::move(next->members),
      std::move(next->fingerprint), [] {});
  {
    MutexLock lock(&mu_);
    if (stopping_ || epoch_.get() != &epoch) {
      return absl::UnavailableError("the epoch has ended");
    }
    ahead_ = ahead;
  }
  const absl::Status status = ahead->LoadAhead(missing);
  {
    MutexLock lock(&mu_);
    ahead_.reset();
  }
  changes_.Note();
  return status;
}

void Growth::HandOver(FleetEpoch& epoch) {
  HandoverPace::TimePoint opened;
  {
    MutexLock lock(&mu_);
    opened = opened_;
  }
  const HandoverPace pace(opened, Deadline::Clock::now(), fleet_.handover_hold,
                          fleet_.handover_limit);
  while (Serves(epoch)) {
    const uint64_t seen = changes_.count();
    if (!formation_.complete()) {
      requests_.Hold(epoch.id(), "");
      epoch.Wake();
      return;
    }
    const bool quiet = requests_.quiet();
    HandoverPace::Turn turn = pace.At(Deadline::Clock::now(), quiet);
    if (turn == HandoverPace::Turn::kEnd) {
      if (bench_.free()) break;
      turn = HandoverPace::Turn::kHold;  // Benchmarks are not replayed.
    }
    requests_.Hold(epoch.id(),
                   turn == HandoverPace::Turn::kHold ? kWholeAgain : "");
    if (turn == HandoverPace::Turn::kLetIn) epoch.Wake();
    changes_.Await(seen, Deadline::After(kQuietPoll));
  }
  {
    MutexLock lock(&mu_);
    if (stopping_ || epoch_.get() != &epoch) return;
    handing_over_ = true;
  }
  epoch.Stop(absl::UnavailableError(kWholeAgain));
  while (true) {
    const uint64_t seen = changes_.count();
    if (!Serves(epoch)) return;
    changes_.Await(seen, Deadline::Infinite());
  }
}

}  // namespace ringfleet::coordinator
