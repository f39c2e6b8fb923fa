// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet_epoch.h"

#include <xxhash.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/log.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/step_merge.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// Raised whenever frames or plans change their meaning.
constexpr int kProtocolVersion = 3;

// How long Connect may take beyond the workers' own limit, so that their
// status, which names a peer, arrives first.
constexpr absl::Duration kConnectMargin = absl::Seconds(5);

}  // namespace

uint64_t ConfigHash(const FleetOptions& options, absl::string_view fingerprint,
                    uint32_t context, uint32_t cache_blocks) {
  const std::string text = absl::StrCat(
      "protocol=", kProtocolVersion, " model=", fingerprint,
      " mesh=", options.mesh.data, "x", options.mesh.expert, "x",
      options.mesh.tensor,
      " dtype=", static_cast<int>(options.settings.dtype()),
      " cache=", static_cast<int>(options.settings.cache_type()),
      " wire=", static_cast<int>(options.settings.wire()), " context=", context,
      " blocks=", cache_blocks,
      " prefill=", static_cast<int>(options.settings.prefill_strategy()),
      " slots=", options.settings.parallel(),
      " capacity=", options.settings.experts().capacity(),
      " reproducible=", options.settings.reproducible(),
      " collectives=", options.collectives.Hash(),
      " tiles=", options.tiles.Hash());
  return XXH64(text.data(), text.size(), /*seed=*/0);
}

FleetEpoch::FleetEpoch(FleetOptions options, uint64_t id,
                       std::vector<Member> members, std::string fingerprint,
                       std::function<void()> on_change)
    : options_(std::move(options)),
      id_(id),
      members_(std::move(members)),
      fleet_fingerprint_(std::move(fingerprint)),
      on_change_(std::move(on_change)),
      failures_([this](int rank) { return clients_[rank]->Disconnected(); }),
      progress_(members_.size()),
      found_(members_.size()),
      fingerprints_(members_.size()),
      results_(members_.size()) {
  for (const Member& member : members_) {
    clients_.push_back(std::make_unique<WorkerClient>(member.address,
                                                      options_.coordinator_id));
  }
}

FleetEpoch::~FleetEpoch() { CancelAll(); }

absl::Status FleetEpoch::Form() {
  RF_RETURN_IF_ERROR(FindFiles());
  RF_RETURN_IF_ERROR(Load([](int) { return true; }));
  RF_RETURN_IF_ERROR(ConnectAll());
  {
    MutexLock lock(&mu_);
    phase_ = EpochPhase::kRunning;
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    const int rank = static_cast<int>(i);
    clients_[i]->StartRun(
        [this, rank](v1::StepResult result) {
          OnStepResult(rank, std::move(result));
        },
        [this, rank](const absl::Status& status) {
          Report(
              rank,
              status.ok() ? absl::UnavailableError("it ended the run") : status,
              /*lost=*/false);
        });
  }
  return absl::OkStatus();
}

absl::Status FleetEpoch::LoadAhead(const std::vector<int>& ranks) {
  RF_RETURN_IF_ERROR(FindFiles());
  return Load([&ranks](int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
}

absl::Status FleetEpoch::Load(const std::function<bool(int)>& loads) {
  return OnEveryRank([this, &loads](int rank) -> absl::Status {
    if (!loads(rank)) return absl::OkStatus();
    RF_ASSIGN_OR_RETURN(
        const v1::LoadProgress last,
        clients_[rank]->Load(LoadRequestFor(rank),
                             Deadline::After(options_.load_timeout),
                             [this, rank](const v1::LoadProgress& progress) {
                               OnLoadProgress(rank, progress);
                             }));
    if (last.context() == 0 || last.cache_blocks() == 0) {
      return absl::InternalError(absl::StrCat(
          "it offers a context of ", last.context(), " positions and ",
          last.cache_blocks(), " cache blocks, want 1 or more of both"));
    }
    if (!last.warning().empty()) {
      RF_LOG(kWarning, members_[rank].Description(), ": ", last.warning());
    }
    MutexLock lock(&mu_);
    progress_[rank].loaded = true;
    progress_[rank].tensor_bytes_read = last.tensor_bytes_read();
    progress_[rank].tensor_bytes_fetched = last.tensor_bytes_fetched();
    progress_[rank].from_shard_cache = last.from_shard_cache();
    progress_[rank].warning = last.warning();
    progress_[rank].kept = last.kept();
    const auto least = [](uint32_t so_far, uint32_t offered) {
      return so_far == 0 ? offered : std::min(so_far, offered);
    };
    context_ = least(context_, last.context());
    cache_blocks_ = least(cache_blocks_, last.cache_blocks());
    return absl::OkStatus();
  });
}

v1::LoadRequest FleetEpoch::LoadRequestFor(int rank) const {
  v1::LoadRequest request = MakeLoadRequest(options_, members_, rank);
  MutexLock lock(&mu_);
  if (!found_[rank].missing().empty()) {
    request.mutable_sources()->Assign(sources_.begin(), sources_.end());
  }
  return request;
}

void FleetEpoch::CheckUnchanged(int rank, const std::string& fingerprint) {
  if (fleet_fingerprint_.empty() || fingerprint.empty() ||
      fingerprint == fleet_fingerprint_) {
    return;
  }
  {
    MutexLock lock(&mu_);
    permanent_ = true;
  }
  // The coordinator's own part of it, tokenizer and all, is still the first.
  Decide(absl::DataLossError(absl::StrCat(
      "worker ", members_[rank].rank,
      ": the checkpoint has changed since the fleet began: ", "fingerprint ",
      fingerprint, ", want ", fleet_fingerprint_, " (",
      options_.settings.model(),
      "); to serve what is there now, restart the fleet")));
}

void FleetEpoch::OnLoadProgress(int rank, const v1::LoadProgress& progress) {
  int lowest = -1;
  int other = -1;  // Whose fingerprint is not that of `lowest`.
  std::string message;
  {
    MutexLock lock(&mu_);
    RankProgress& mine = progress_[rank];
    // The last message has other figures instead.
    if (!progress.done()) {
      mine.bytes_done = progress.bytes_done();
      mine.bytes_total = progress.bytes_total();
    } else {
      mine.bytes_done = mine.bytes_total;
    }
    mine.resident_bytes = progress.resident_bytes();
    mine.bytes_fetched = progress.bytes_fetched();
    if (mine.reload_cause.empty() && !progress.reload_cause().empty()) {
      RF_LOG(kWarning, members_[rank].Description(),
             ": the weights load again: ", progress.reload_cause());
    }
    mine.reload_cause = progress.reload_cause();
    if (!progress.fingerprint().empty()) {
      fingerprints_[rank] = progress.fingerprint();
    }
    for (size_t i = 0; i < fingerprints_.size() && !comparing_; ++i) {
      if (fingerprints_[i].empty()) continue;
      if (lowest < 0) lowest = static_cast<int>(i);
      if (fingerprints_[i] == fingerprints_[lowest]) continue;
      other = static_cast<int>(i);
      message = absl::StrCat(
          "worker ", members_[i].rank,
          " reads another checkpoint: fingerprint ", fingerprints_[i],
          ", worker ", members_[lowest].rank, " has ", fingerprints_[lowest],
          " (", options_.settings.model());
      comparing_ = true;
    }
  }
  if (other >= 0) {
    const std::string what = CompareCheckpoints(lowest, other);
    if (!what.empty()) absl::StrAppend(&message, "; ", what);
    {
      MutexLock lock(&mu_);
      permanent_ = true;
    }
    Decide(absl::DataLossError(absl::StrCat(message, ")")));
  }
  CheckUnchanged(rank, progress.fingerprint());
  on_change_();
}

absl::Status FleetEpoch::ConnectAll() {
  v1::ConnectRequest request;
  request.set_epoch(id_);
  for (const Member& member : members_) {
    request.add_addresses(member.address);
  }
  request.set_wire(options_.settings.wire());
  request.set_prefill_strategy(options_.settings.prefill_strategy());
  request.set_transport(options_.settings.transport());
  request.set_expert_capacity(options_.settings.experts().capacity());
  request.set_reproducible(options_.settings.reproducible());
  request.set_algorithm_table(options_.collectives.ToJson());
  request.set_tile_table(options_.tiles.ToJson());
  request.set_timeout_ms(absl::ToInt64Milliseconds(options_.connect_timeout));
  request.set_collective_timeout_ms(
      absl::ToInt64Milliseconds(options_.collective_timeout));
  {
    MutexLock lock(&mu_);
    phase_ = EpochPhase::kConnecting;
    request.set_context(context_);
    request.set_cache_blocks(cache_blocks_);
    request.set_config_hash(
        ConfigHash(options_, fingerprints_[0], context_, cache_blocks_));
  }
  return OnEveryRank([this, &request](int rank) -> absl::Status {
    v1::ConnectRequest mine = request;
    mine.set_ranks_on_host(RanksOnMachine(members_, rank));
    RF_ASSIGN_OR_RETURN(
        const v1::ConnectResponse response,
        clients_[rank]->Connect(
            mine, Deadline::After(options_.connect_timeout + kConnectMargin)));
    MutexLock lock(&mu_);
    progress_[rank].cache_bytes = response.cache_bytes();
    return absl::OkStatus();
  });
}

absl::Status FleetEpoch::OnEveryRank(
    const std::function<absl::Status(int)>& call) {
  {
    MutexLock lock(&mu_);
    unfinished_calls_ = static_cast<int>(clients_.size());
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < clients_.size(); ++i) {
    threads.emplace_back([this, &call, rank = static_cast<int>(i)] {
      const absl::Status status = call(rank);
      if (!status.ok()) Report(rank, status, /*lost=*/false);
      MutexLock lock(&mu_);
      --unfinished_calls_;
      changed_.NotifyAll();
    });
  }
  bool failed = false;
  {
    MutexLock lock(&mu_);
    while (unfinished_calls_ > 0 && !Ended()) changed_.Wait(&mu_);
    failed = Ended();
  }
  const absl::Status status = failed ? Conclude() : absl::OkStatus();
  for (std::thread& thread : threads) thread.join();
  return status;
}

absl::Status FleetEpoch::RunSteps(StepSource& source) {
  std::vector<int> ranks;
  for (const Member& member : members_) ranks.push_back(member.rank);
  while (true) {
    while (auto plan = source.NextPlan()) {
      {
        MutexLock lock(&mu_);
        last_step_ = plan->step();
        steps_.emplace_back(plan->step(),
                            Deadline::After(options_.step_timeout));
      }
      // A stream that has ended reports its reason itself.
      for (const auto& client : clients_) client->Send(*plan);
    }
    const auto held = source.held_until();
    std::vector<v1::StepResult> results;
    {
      MutexLock lock(&mu_);
      while (!Ended() && !woken_ && !ResultsComplete()) {
        if (!held.has_value()) {
          changed_.Wait(&mu_);
        } else if (!changed_.WaitUntil(&mu_, *held)) {
          break;
        }
      }
      woken_ = false;
      if (!Ended() && ResultsComplete()) {
        for (auto& queue : results_) {
          results.push_back(std::move(queue.front()));
          queue.pop_front();
        }
        if (!steps_.empty()) steps_.pop_front();
      } else if (Ended()) {
        break;
      }
    }
    if (results.empty()) continue;
    const auto merged = MergeStepResults(
        results, ranks, static_cast<size_t>(options_.mesh.group_size()));
    absl::Status status = merged.status();
    if (merged.ok() && merged->epoch() != id_) {
      status = absl::InternalError(
          absl::StrCat("results of epoch ", merged->epoch(), ", want ", id_));
    }
    if (status.ok()) status = source.OnResult(*merged);
    if (!status.ok()) Decide(status);
  }
  return Conclude();
}

bool FleetEpoch::ResultsComplete() const {
  return std::none_of(results_.begin(), results_.end(),
                      [](const auto& queue) { return queue.empty(); });
}

void FleetEpoch::OnStepResult(int rank, v1::StepResult result) {
  if (result.has_error()) {
    const v1::StepError& error = result.error();
    const uint32_t code = error.code();
    Report(rank,
           error.superseded()
               ? cluster::SupersededError(error.message())
               : absl::Status(code >= 1 && code <= 16
                                  ? static_cast<absl::StatusCode>(code)
                                  : absl::StatusCode::kAborted,
                              error.message()),
           /*lost=*/false, error.stopping());
    return;
  }
  MutexLock lock(&mu_);
  results_[rank].push_back(std::move(result));
  changed_.NotifyAll();
}

void FleetEpoch::Wake() {
  MutexLock lock(&mu_);
  woken_ = true;
  changed_.NotifyAll();
}

void FleetEpoch::Stop(const absl::Status& cause) { Decide(cause); }

void FleetEpoch::Decide(const absl::Status& verdict) {
  {
    MutexLock lock(&mu_);
    if (verdict_.ok()) verdict_ = verdict;
    changed_.NotifyAll();
  }
  CancelAll();
}

void FleetEpoch::ReportLost(uint64_t member_id, absl::string_view why) {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].member_id == member_id) {
      Report(static_cast<int>(rank), absl::UnavailableError(why),
             /*lost=*/true);
    }
  }
}

void FleetEpoch::Report(int rank, const absl::Status& status, bool lost,
                        bool stopping) {
  {
    MutexLock lock(&mu_);
    if (failures_.empty()) {
      cancel_at_ = Deadline::After(2 * options_.cause_grace);
    }
    failures_.Add({rank, status, lost, phase_, stopping});
    changed_.NotifyAll();
  }
  if (lost) CancelAll();
}

void FleetEpoch::Tick() {
  bool cancel = false;
  std::vector<int> late;
  uint64_t step = 0;
  {
    MutexLock lock(&mu_);
    cancel = cancel_at_.Expired();
    if (!Ended() && !steps_.empty() && steps_.front().second.Expired()) {
      step = steps_.front().first;
      for (size_t rank = 0; rank < results_.size(); ++rank) {
        if (results_[rank].empty()) late.push_back(static_cast<int>(rank));
      }
    }
  }
  if (cancel) CancelAll();
  for (const int rank : late) {
    Report(rank,
           absl::DeadlineExceededError(
               absl::StrCat("no result of step ", step, " for ",
                            absl::FormatDuration(options_.step_timeout))),
           /*lost=*/false);
  }
}

std::string FleetEpoch::Where(EpochPhase phase) const {
  switch (phase) {
    case EpochPhase::kLoading:
      return "while loading";
    case EpochPhase::kConnecting:
      return "while connecting";
    case EpochPhase::kRunning:
      break;
  }
  if (!steps_.empty())
    return absl::StrCat("during step ", steps_.front().first);
  return absl::StrCat("after step ", last_step_);
}

absl::Status FleetEpoch::Conclude() {
  // The state of a connection changes without a notification, hence slices.
  constexpr absl::Duration kSlice = absl::Milliseconds(20);
  const Deadline grace = Deadline::After(options_.cause_grace);
  absl::Status cause;
  {
    MutexLock lock(&mu_);
    const RankFailure* best = nullptr;
    while (verdict_.ok()) {
      best = failures_.Best();
      // The comparison of two checkpoints decides by itself.
      if (!comparing_ &&
          (failures_.IsLoss(*best) || failures_.size() == members_.size() ||
           grace.Expired())) {
        break;
      }
      const Deadline slice = Deadline::After(kSlice);
      changed_.WaitUntil(&mu_, grace.Expired()
                                   ? slice.when()
                                   : std::min(grace.when(), slice.when()));
    }
    if (verdict_.ok()) {
      const bool superseded = cluster::IsSuperseded(best->status);
      const bool lost = !superseded && failures_.IsLoss(*best);
      // A stopping worker cancelled, not the callers, who would take the code
      // for their own doing.
      const bool cancelled = absl::IsCancelled(best->status);
      const absl::string_view what =
          superseded  ? " serves another coordinator "
          : lost      ? " was lost "
          : cancelled ? " was taken over by another call, or told to stop, "
                      : " failed ";
      verdict_ = absl::Status(
          cancelled || superseded ? absl::StatusCode::kUnavailable
                                  : best->status.code(),
          absl::StrCat(members_[best->rank].Description(), what,
                       Where(best->phase), ": ", best->status.message()));
      permanent_ =
          superseded || (!lost && best->phase == EpochPhase::kLoading &&
                         IsIncurable(best->status));
      failures_.Settle();
    }
    cause = verdict_;
  }
  CancelAll();
  return cause;
}

void FleetEpoch::CancelAll() {
  for (const auto& client : clients_) client->Cancel();
}

void FleetEpoch::SetResidentBytes(int rank, uint64_t bytes) {
  MutexLock lock(&mu_);
  progress_[rank].resident_bytes = bytes;
}

std::vector<FleetEpoch::RankProgress> FleetEpoch::Progress() const {
  MutexLock lock(&mu_);
  return progress_;
}

uint32_t FleetEpoch::context() const {
  MutexLock lock(&mu_);
  return context_;
}

uint32_t FleetEpoch::cache_blocks() const {
  MutexLock lock(&mu_);
  return cache_blocks_;
}

std::string FleetEpoch::fingerprint() const {
  MutexLock lock(&mu_);
  return fingerprints_[0];
}

bool FleetEpoch::permanent() const {
  MutexLock lock(&mu_);
  return permanent_;
}

std::vector<uint64_t> FleetEpoch::LostMembers() const {
  MutexLock lock(&mu_);
  std::vector<uint64_t> lost;
  for (const int rank : failures_.LostRanks()) {
    lost.push_back(members_[rank].member_id);
  }
  return lost;
}

}  // namespace ringfleet::coordinator
