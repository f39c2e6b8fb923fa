// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/survivors.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// Leases, steps and hanging calls are looked at this often.
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kFormedPoll = absl::Milliseconds(50);

// Between failed epochs of the same workers.
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(30);

Deadline Earlier(Deadline a, Deadline b) { return a.when() < b.when() ? a : b; }

}  // namespace

Fleet::Fleet(FleetOptions options, v1::BuildInfo build)
    : options_(std::move(options)),
      build_(std::move(build)),
      membership_({options_.mesh.world_size(), build_, options_.lease},
                  absl::Now(), [] { return Deadline::Clock::now(); }),
      layout_(options_.layout),
      place_slots_(options_.experts.place_slots),
      pause_(kFirstPause),
      form_after_(Deadline::Clock::now()) {
  main_ = std::thread([this] { Main(); });
  watchdog_ = std::thread([this] { Watchdog(); });
  if (options_.rebalance_interval > absl::ZeroDuration()) {
    balancer_ = std::thread([this] { Balancer(); });
  }
  if (options_.mesh.data > 1 && !options_.one_shot) {
    grower_ = std::thread([this] { Grower(); });
  }
}

Fleet::~Fleet() { Shutdown(); }

absl::StatusOr<v1::RegisterResponse> Fleet::Register(
    const v1::RegisterRequest& request) {
  v1::RegisterResponse response;
  std::shared_ptr<FleetEpoch> epoch;
  uint64_t replaced = 0;
  {
    MutexLock lock(&mu_);
    if (stopping_) return WhyNotReady();
    RF_ASSIGN_OR_RETURN(const cluster::Member member,
                        membership_.Register(request));
    RF_LOG(kInfo, member.Description(), " on host ", member.host,
           " has registered");
    response.set_member_id(member.member_id);
    response.set_rank(member.rank);
    response.set_world_size(options_.mesh.world_size());
    response.set_heartbeat_interval_ms(
        absl::ToInt64Milliseconds(membership_.HeartbeatInterval()));
    if (scheduler_ != nullptr || state_ == v1::FLEET_STATE_LOADING) {
      for (const cluster::Member& old : epoch_->members()) {
        if (old.rank != member.rank) continue;
        epoch = epoch_;
        replaced = old.member_id;
      }
    }
    Changed();
  }
  // The epoch has a predecessor in this rank, which is gone.
  if (epoch != nullptr) {
    epoch->ReportLost(replaced, absl::StrCat("another process registered at ",
                                             request.address()));
  }
  return response;
}

absl::Status Fleet::Heartbeat(const v1::HeartbeatRequest& request) {
  MutexLock lock(&mu_);
  return membership_.Heartbeat(request);
}

v1::ClusterState Fleet::State() const {
  v1::ClusterState state;
  MutexLock lock(&mu_);
  state.set_state(state_);
  state.set_name(options_.name);
  state.set_model(options_.model_dir);
  state.set_cluster_file(options_.cluster_file);
  const bool live =
      state_ == v1::FLEET_STATE_LOADING || state_ == v1::FLEET_STATE_READY;
  const cluster::MeshShape mesh = live ? epoch_->mesh() : options_.mesh;
  state.mutable_mesh()->set_data(mesh.data);
  state.mutable_mesh()->set_expert(mesh.expert);
  state.mutable_mesh()->set_tensor(mesh.tensor);
  state.set_world_size(options_.mesh.world_size());
  state.set_dtype(options_.dtype);
  state.set_wire(options_.wire);
  state.set_pid(getpid());
  *state.mutable_build() = build_;
  state.set_load_ms(load_ms_);
  if (!error_.ok()) {
    state.set_error(std::string(error_.message()));
    state.set_error_code(static_cast<uint32_t>(error_.code()));
  }
  // By rank of the fleet; of those that the epoch has.
  std::vector<FleetEpoch::RankProgress> progress(options_.mesh.world_size());
  std::vector<char> serves(options_.mesh.world_size(), 0);
  if (epoch_ != nullptr) {
    state.set_epoch(epoch_->id());
    state.set_context(epoch_->context());
    if (live) {
      std::vector<FleetEpoch::RankProgress> of_epoch = epoch_->Progress();
      for (size_t i = 0; i < of_epoch.size(); ++i) {
        const int rank = epoch_->members()[i].rank;
        progress[rank] = std::move(of_epoch[i]);
        serves[rank] = 1;
      }
    }
  }
  if (scheduler_ != nullptr) {
    state.set_requests_running(scheduler_->running());
    state.set_requests_waiting(scheduler_->waiting());
  }
  for (const auto& rank : progress) {
    state.set_load_bytes_done(state.load_bytes_done() + rank.bytes_done);
    state.set_load_bytes_total(state.load_bytes_total() + rank.bytes_total);
  }
  for (const cluster::Member& member : membership_.Members()) {
    v1::WorkerState* worker = state.add_workers();
    const FleetEpoch::RankProgress& rank = progress[member.rank];
    worker->set_rank(member.rank);
    worker->set_address(member.address);
    worker->set_pid(member.pid);
    *worker->mutable_build() = member.build;
    worker->set_resident_bytes(rank.resident_bytes);
    worker->set_cache_bytes(rank.cache_bytes);
    worker->set_host(member.host);
    worker->set_load_bytes_done(rank.bytes_done);
    worker->set_load_bytes_total(rank.bytes_total);
    worker->set_from_shard_cache(rank.from_shard_cache);
    worker->set_load_warning(rank.warning);
    worker->set_tensor_bytes_read(rank.tensor_bytes_read);
    worker->set_bytes_fetched(rank.bytes_fetched);
    worker->set_tensor_bytes_fetched(rank.tensor_bytes_fetched);
    worker->set_fetches_from(rank.fetches_from);
    worker->set_kept(rank.kept);
    if (member.lost) {
      worker->set_state(v1::MEMBER_STATE_LOST);
    } else if (live && serves[member.rank] == 0) {
      worker->set_state(v1::MEMBER_STATE_REGISTERED);
    } else if (state_ == v1::FLEET_STATE_READY || rank.loaded) {
      worker->set_state(v1::MEMBER_STATE_READY);
    } else if (state_ == v1::FLEET_STATE_LOADING) {
      worker->set_state(v1::MEMBER_STATE_LOADING);
    } else {
      worker->set_state(v1::MEMBER_STATE_REGISTERED);
    }
  }
  return state;
}

void Fleet::Changed() {
  ++version_;
  changed_.NotifyAll();
}

void Fleet::SetState(v1::FleetState state) {
  state_ = state;
  Changed();
}

bool Fleet::WaitForChange(uint64_t* version, Deadline deadline) {
  MutexLock lock(&mu_);
  while (version_ == *version) {
    if (deadline.Expired()) return false;
    changed_.WaitUntil(&mu_, deadline.when());
  }
  *version = version_;
  return true;
}

bool Fleet::FailedForGood() const {
  return state_ == v1::FLEET_STATE_FAILED &&
         (options_.one_shot ||
          form_registrations_ > membership_.registrations());
}

absl::Status Fleet::WhyNotReady() const {
  if (stopping_) return absl::UnavailableError("the coordinator is stopping");
  if (FailedForGood()) return error_;
  if (state_ == v1::FLEET_STATE_LOADING) {
    return absl::UnavailableError("the fleet is not ready: it loads the model");
  }
  std::string why =
      absl::StrCat("the fleet is not ready: it waits for worker ",
                   absl::StrJoin(membership_.MissingRanks(), ", "), " of ",
                   options_.mesh.world_size());
  if (membership_.complete()) why = "the fleet is not ready: it forms again";
  if (!error_.ok()) absl::StrAppend(&why, " (", error_.message(), ")");
  return absl::UnavailableError(why);
}

absl::Status Fleet::WaitReady(Deadline deadline,
                              const std::function<bool()>& cancelled) {
  MutexLock lock(&mu_);
  while (true) {
    if (state_ == v1::FLEET_STATE_READY) return absl::OkStatus();
    if (stopping_ || FailedForGood() || deadline.Expired()) {
      return WhyNotReady();
    }
    changed_.WaitUntil(&mu_,
                       Earlier(deadline, Deadline::After(kFormedPoll)).when());
    if (cancelled == nullptr) continue;
    mu_.Unlock();
    const bool gone = cancelled();
    mu_.Lock();
    if (gone) {
      return absl::CancelledError("the caller left before the fleet was ready");
    }
  }
}

absl::Status Fleet::Submit(std::shared_ptr<const Request> request) {
  MutexLock lock(&mu_);
  if (scheduler_ == nullptr) return WhyNotReady();
  RF_RETURN_IF_ERROR(scheduler_->Submit(std::move(request)));
  epoch_->Wake();
  Changed();
  return absl::OkStatus();
}

absl::Status Fleet::Cancel(absl::string_view id) {
  RequestUpdate cancelled;
  {
    MutexLock lock(&mu_);
    if (scheduler_ != nullptr) {
      RF_RETURN_IF_ERROR(scheduler_->Cancel(id));
      epoch_->Wake();
      Changed();
      return absl::OkStatus();
    }
    const auto found =
        std::find_if(handed_over_.begin(), handed_over_.end(),
                     [&](const auto& request) { return request->id == id; });
    if (found == handed_over_.end()) {
      return absl::NotFoundError(
          absl::StrCat("job ", id, " is neither running nor waiting"));
    }
    cancelled = {*found, absl::CancelledError(
                             absl::StrCat("job ", id, " was cancelled"))};
    handed_over_.erase(found);
  }
  cancelled.Deliver();
  return absl::OkStatus();
}

absl::StatusOr<v1::StatisticsResponse> Fleet::Statistics(
    bool reset_expert_counts, Deadline deadline) {
  std::shared_ptr<FleetEpoch> epoch;
  {
    MutexLock lock(&mu_);
    if (state_ != v1::FLEET_STATE_READY) return WhyNotReady();
    epoch = epoch_;
  }
  v1::StatisticsRequest request;
  request.set_reset_expert_counts(reset_expert_counts);
  // Rank 0 last: what it has counted is only forgotten once all others have
  // forgotten theirs, so that a caller who is told of an error can ask again.
  if (reset_expert_counts) {
    const int ranks = static_cast<int>(epoch->members().size());
    for (int rank = 1; rank < ranks; ++rank) {
      const absl::Status status =
          epoch->client(rank).Statistics(request, deadline).status();
      RF_RETURN_IF_ERROR(
          Annotate(status, epoch->members()[rank].Description()));
    }
  }
  return epoch->client(0).Statistics(request, deadline);
}

uint32_t Fleet::context() const {
  MutexLock lock(&mu_);
  return state_ == v1::FLEET_STATE_READY ? epoch_->context() : 0;
}

void Fleet::Shutdown() {
  std::shared_ptr<FleetEpoch> epoch;
  std::shared_ptr<FleetEpoch> ahead;
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    epoch = epoch_;
    ahead = ahead_;
    SetState(v1::FLEET_STATE_STOPPING);
  }
  const absl::Status cause =
      absl::UnavailableError("the coordinator is stopping");
  if (epoch != nullptr) epoch->Stop(cause);
  if (ahead != nullptr) ahead->Stop(cause);
  main_.join();
  watchdog_.join();
  if (balancer_.joinable()) balancer_.join();
  if (grower_.joinable()) grower_.join();
}

void Fleet::Main() {
  while (const std::shared_ptr<FleetEpoch> epoch = NextEpoch()) {
    const absl::Status cause = RunEpoch(*epoch);
    EndEpoch(*epoch, cause);
  }
  FailHandedOver(absl::UnavailableError("the coordinator is stopping"));
}

FleetOptions Fleet::WholeFleet() const {
  FleetOptions options = options_;
  options.layout = layout_;
  return options;
}

std::vector<int> Fleet::AbsentRanks() const {
  std::vector<int> absent = membership_.MissingRanks();
  if (membership_.registrations() == excluded_registrations_) {
    absent.insert(absent.end(), excluded_ranks_.begin(), excluded_ranks_.end());
  }
  return absent;
}

std::optional<Fleet::Formation> Fleet::NextFormation() const {
  std::vector<cluster::Member> members = membership_.Members();
  const std::vector<int> absent = AbsentRanks();
  // A fleet begins with all that belong to it.
  if (!absent.empty() && !fingerprint_.empty()) {
    absl::StatusOr<Survivors> survivors = FindSurvivors(WholeFleet(), absent);
    if (survivors.ok()) {
      std::erase_if(members, [&](const cluster::Member& member) {
        return !std::binary_search(survivors->ranks.begin(),
                                   survivors->ranks.end(), member.rank);
      });
      return Formation{std::move(survivors->options), std::move(members)};
    }
  }
  if (!membership_.complete()) return std::nullopt;
  return Formation{WholeFleet(), std::move(members)};
}

bool Fleet::MayForm() const {
  return form_after_.Expired() && ahead_ == nullptr &&
         membership_.registrations() >= form_registrations_ &&
         !(options_.one_shot && !error_.ok());
}

std::shared_ptr<FleetEpoch> Fleet::NextEpoch() {
  std::shared_ptr<FleetEpoch>
      last;  // Joins its threads after the lock is gone.
  MutexLock lock(&mu_);
  std::optional<Formation> next;
  while (!stopping_) {
    next = NextFormation();
    if (next.has_value() && MayForm()) break;
    if (!next.has_value() && !handed_over_.empty()) {
      const absl::Status cause = WhyNotReady();
      mu_.Unlock();
      FailHandedOver(cause);
      mu_.Lock();
      continue;
    }
    changed_.WaitUntil(&mu_, Deadline::After(kTick).when());
  }
  if (stopping_) return nullptr;
  last = std::move(epoch_);
  const size_t ranks = next->members.size();
  epoch_ = std::make_shared<FleetEpoch>(
      std::move(next->options), membership_.NewEpoch(),
      std::move(next->members), fingerprint_, [this] {
        MutexLock progress_lock(&mu_);
        Changed();
      });
  formed_registrations_ = membership_.registrations();
  SetState(v1::FLEET_STATE_LOADING);
  RF_LOG(kInfo, "epoch ", epoch_->id(), ": loading ", options_.model_dir,
         " on ", ranks, " of ", options_.mesh.world_size(), " workers");
  return epoch_;
}

absl::Status Fleet::RunEpoch(FleetEpoch& epoch) {
  const absl::Time start = absl::Now();
  RF_RETURN_IF_ERROR(epoch.Form());
  std::vector<RequestUpdate> refused;
  {
    MutexLock lock(&mu_);
    if (stopping_) return WhyNotReady();
    scheduler_ = std::make_unique<Scheduler>(
        Scheduler::Options{.epoch = epoch.id(),
                           .groups = static_cast<uint32_t>(epoch.mesh().data),
                           .slots = options_.GroupSlots(),
                           .context = epoch.context()},
        [] { return Deadline::Clock::now(); });
    // Who waited is first, before anybody else can be submitted.
    for (auto& request : std::exchange(handed_over_, {})) {
      const absl::Status status = scheduler_->Submit(request);
      if (!status.ok()) refused.push_back({std::move(request), status});
    }
    load_ms_ = absl::ToDoubleMilliseconds(absl::Now() - start);
    error_ = absl::OkStatus();
    fingerprint_ = epoch.fingerprint();
    SetState(v1::FLEET_STATE_READY);
    RF_LOG(kInfo, "epoch ", epoch.id(), ": ready after ", load_ms_,
           " ms, context ", epoch.context());
  }
  for (const RequestUpdate& update : refused) update.Deliver();
  return epoch.RunSteps(*this);
}

void Fleet::EndEpoch(FleetEpoch& epoch, const absl::Status& cause) {
  std::vector<RequestUpdate> updates;
  std::shared_ptr<FleetEpoch> ahead;
  bool ran = false;
  {
    MutexLock lock(&mu_);
    ran = scheduler_ != nullptr;
    // What it loads would meet the next epoch.
    ahead = ahead_;
    for (const uint64_t member_id : epoch.LostMembers()) {
      membership_.Evict(member_id);
    }
    if (scheduler_ != nullptr) {
      if (scheduler_->last_step() > 0) pause_ = kFirstPause;
      FailMove(cause);
      if (handing_over_) handed_over_ = scheduler_->TakeWaiting();
      scheduler_->FailAll(cause);
      updates = scheduler_->TakeUpdates();
      if (bench_ != nullptr) bench_->Fail(cause);
      bench_.reset();
      scheduler_.reset();
    }
    if (!stopping_ && std::exchange(handing_over_, false)) {
      form_after_ = Deadline::After(absl::ZeroDuration());
      SetState(v1::FLEET_STATE_FAILED);
      RF_LOG(kInfo, "epoch ", epoch.id(), " has ended: ", cause.message());
    } else if (!stopping_) {
      error_ = cause;
      form_registrations_ = epoch.permanent() ? formed_registrations_ + 1 : 0;
      if (!Narrowed(epoch) && !grown_ranks_.empty()) {
        excluded_ranks_ = std::exchange(grown_ranks_, {});
        excluded_registrations_ = membership_.registrations();
        form_registrations_ = 0;
      }
      form_after_ = Deadline::After(pause_);
      pause_ = std::min(2 * pause_, kLongestPause);
      SetState(v1::FLEET_STATE_FAILED);
      RF_LOG(kError, "epoch ", epoch.id(), " has failed: ", cause.message());
    }
  }
  for (const RequestUpdate& update : updates) update.Deliver();
  if (ahead != nullptr) ahead->Stop(cause);
  if (!ran) FailHandedOver(cause);
}

std::optional<v1::StepPlan> Fleet::NextPlan() {
  std::optional<v1::StepPlan> plan;
  {
    MutexLock lock(&mu_);
    plan = BenchPlans() ? bench_->NextPlan() : scheduler_->NextPlan();
    PlanMove(&plan);
    RetireBench();
  }
  DeliverUpdates();
  return plan;
}

absl::Status Fleet::OnResult(const v1::StepResult& merged) {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = bench_ != nullptr && bench_->owns() ? bench_->OnResult(merged)
                                                 : scheduler_->OnResult(merged);
    NoteMoved(merged.step());
    if (!Narrowed(*epoch_)) grown_ranks_.clear();
    RetireBench();
  }
  DeliverUpdates();
  return status;
}

void Fleet::DeliverUpdates() {
  std::vector<RequestUpdate> updates;
  {
    MutexLock lock(&mu_);
    updates = scheduler_->TakeUpdates();
  }
  for (const RequestUpdate& update : updates) update.Deliver();
}

void Fleet::Watchdog() {
  while (true) {
    std::shared_ptr<FleetEpoch> epoch;
    std::vector<cluster::Member> lost;
    {
      MutexLock lock(&mu_);
      // The steps of the fleet also notify: wait for the whole tick.
      const Deadline tick = Deadline::After(kTick);
      while (!stopping_ && !tick.Expired()) {
        changed_.WaitUntil(&mu_, tick.when());
      }
      if (stopping_) return;
      lost = membership_.Expire();
      if (!lost.empty()) Changed();
      epoch = epoch_;
    }
    for (const cluster::Member& member : lost) {
      RF_LOG(kWarning, member.Description(), " has lost its lease");
      if (epoch == nullptr) continue;
      epoch->ReportLost(member.member_id,
                        absl::StrCat("no heartbeat for ",
                                     absl::FormatDuration(options_.lease)));
    }
    if (epoch != nullptr) epoch->Tick();
  }
}

}  // namespace ringfleet::coordinator
