// SPDX-License-Identifier: Apache-2.0
// Which of the model's files the ranks of an epoch have, who fetches from whom,
// and what differs when two ranks read different things.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/checkpoint/checkpoint_files.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/checkpoint_difference.h"
#include "coordinator/fleet/fleet_epoch.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// How long workers may take to say what they read when they read different
// things; without an answer the difference is only not named.
constexpr absl::Duration kDescribeTime = absl::Seconds(30);

}  // namespace

absl::Status FleetEpoch::FindFiles() {
  RF_RETURN_IF_ERROR(OnEveryRank([this](int rank) -> absl::Status {
    v1::FindCheckpointRequest request;
    request.set_model_path(options_.settings.model());
    RF_ASSIGN_OR_RETURN(v1::FindCheckpointResponse found,
                        clients_[rank]->FindCheckpoint(
                            request, Deadline::After(options_.load_timeout)));
    MutexLock lock(&mu_);
    found_[rank] = std::move(found);
    return absl::OkStatus();
  }));
  {
    MutexLock lock(&mu_);
    if (std::all_of(found_.begin(), found_.end(), [](const auto& found) {
          return found.missing().empty();
        })) {
      return absl::OkStatus();
    }
  }
  const bool here =
      cluster::ListCheckpointFiles(options_.settings.model()).ok();
  MutexLock lock(&mu_);
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (!found_[rank].complete()) continue;
    const Member& member = members_[rank];
    v1::FileSource& source = sources_.emplace_back();
    source.set_name(absl::StrCat("worker ", member.rank));
    source.set_address(member.address);
  }
  if (here) sources_.emplace_back().set_name("the coordinator");
  const std::string names = absl::StrJoin(
      sources_, ", ", [](std::string* out, const v1::FileSource& source) {
        absl::StrAppend(out, source.name());
      });
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const std::string& missing = found_[rank].missing();
    if (missing.empty()) continue;
    RF_LOG(kWarning, members_[rank].Description(), ": ", missing,
           names.empty() ? ", nor has anyone else these files"
                         : "; it fetches what it needs from ",
           names);
    progress_[rank].fetches_from = names;
  }
  return absl::OkStatus();
}

int FleetEpoch::RankWithFiles(int rank) const {
  MutexLock lock(&mu_);
  if (found_[rank].missing().empty()) return rank;
  for (size_t i = 0; i < found_.size(); ++i) {
    if (found_[i].complete() && fingerprints_[i] == fingerprints_[rank]) {
      return static_cast<int>(i);
    }
  }
  return rank;
}

std::string FleetEpoch::CompareCheckpoints(int want, int got) {
  v1::DescribeCheckpointRequest request;
  request.set_model_path(options_.settings.model());
  const Deadline deadline = Deadline::After(kDescribeTime);
  const auto wanted =
      clients_[RankWithFiles(want)]->DescribeCheckpoint(request, deadline);
  if (!wanted.ok()) return "";
  const auto found =
      clients_[RankWithFiles(got)]->DescribeCheckpoint(request, deadline);
  if (!found.ok()) return "";
  return FindDifference(*wanted, *found);
}

}  // namespace ringfleet::coordinator
