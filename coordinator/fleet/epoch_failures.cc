// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/epoch_failures.h"

#include <algorithm>

#include "cluster/process/status.h"

namespace ringfleet::coordinator {

void EpochFailures::Add(const RankFailure& failure) {
  const auto known = std::find_if(
      failures_.begin(), failures_.end(),
      [&](const RankFailure& other) { return other.rank == failure.rank; });
  if (known == failures_.end()) {
    failures_.push_back(failure);
  } else if (!cluster::IsSuperseded(known->status) &&
             (cluster::IsSuperseded(failure.status) ||
              (failure.lost && !known->lost))) {
    *known = failure;
  }
}

bool EpochFailures::IsLoss(const RankFailure& failure) const {
  return failure.lost || cluster::IsSuperseded(failure.status) ||
         (absl::IsUnavailable(failure.status) && disconnected_(failure.rank));
}

int EpochFailures::Weight(const RankFailure& failure) const {
  if (cluster::IsSuperseded(failure.status)) return 4;
  if (IsLoss(failure)) return 3;
  if (failure.stopping) return 2;
  switch (failure.status.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return 0;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 1;
    default:
      return 2;
  }
}

const RankFailure* EpochFailures::Best() const {
  const RankFailure* best = nullptr;
  for (const RankFailure& failure : failures_) {
    if (best == nullptr || Weight(failure) > Weight(*best)) best = &failure;
  }
  return best;
}

void EpochFailures::Settle() {
  for (RankFailure& failure : failures_) failure.lost = IsLoss(failure);
}

std::vector<int> EpochFailures::LostRanks() const {
  std::vector<int> lost;
  for (const RankFailure& failure : failures_) {
    if (failure.lost) lost.push_back(failure.rank);
  }
  return lost;
}

bool IsIncurable(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace ringfleet::coordinator
