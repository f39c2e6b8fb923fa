// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/epoch_trace.h"
#include "coordinator/fleet/host_read.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// Leases, steps and hanging calls are looked at this often.
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kFormedPoll = absl::Milliseconds(50);

Deadline Earlier(Deadline a, Deadline b) { return a.when() < b.when() ? a : b; }

std::optional<StepPace::Duration> BatchStepOf(
    const v1::FleetSettings& settings) {
  if (!settings.has_batch_step_ms()) return std::nullopt;
  return std::chrono::milliseconds(settings.batch_step_ms());
}

Scheduler::Reuse ReuseOf(v1::PrefixCache setting) {
  switch (setting) {
    case v1::PREFIX_CACHE_OFF:
      return Scheduler::Reuse::kNobodys;
    case v1::PREFIX_CACHE_SHARED:
      return Scheduler::Reuse::kAll;
    default:
      return Scheduler::Reuse::kOwners;
  }
}

absl::Status StoppingError() {
  return absl::UnavailableError("the coordinator is stopping");
}

}  // namespace

Fleet::Fleet(FleetOptions options, v1::BuildInfo build)
    : options_(std::move(options)),
      build_(std::move(build)),
      formation_(options_, build_),
      moves_(options_),
      growth_(options_, formation_, moves_, bench_, requests_, changes_) {
  main_ = std::thread([this] { Main(); });
  watchdog_ = std::thread([this] { Watchdog(); });
}

Fleet::~Fleet() { Shutdown(); }

absl::StatusOr<v1::RegisterResponse> Fleet::Register(
    const v1::RegisterRequest& request) {
  if (const View now = view(); now.state == v1::FLEET_STATE_STOPPING) {
    return now.error;
  }
  RF_ASSIGN_OR_RETURN(v1::RegisterResponse response,
                      formation_.Register(request));
  changes_.Note();
  // The epoch may have a predecessor in this rank, which is gone.
  ReportGone();
  return response;
}

absl::Status Fleet::Heartbeat(const v1::HeartbeatRequest& request) {
  RF_RETURN_IF_ERROR(formation_.Heartbeat(request));
  if (!request.experts().empty()) NoteExperts(request);
  return absl::OkStatus();
}

void Fleet::NoteExperts(const v1::HeartbeatRequest& heartbeat) {
  v1::StatisticsResponse statistics;
  *statistics.mutable_layers() = heartbeat.experts();
  const std::vector<v1::ExpertBalance> balance = BalanceOf(statistics);
  google::protobuf::RepeatedPtrField<v1::ExpertImbalance> experts;
  for (const v1::ExpertCounts& counts : statistics.layers()) {
    const auto& tokens = counts.average();
    const double sum = std::accumulate(tokens.begin(), tokens.end(), 0.0);
    if (sum <= 0) continue;
    v1::ExpertImbalance* const layer = experts.Add();
    layer->set_layer(counts.layer());
    layer->set_expert(*std::max_element(tokens.begin(), tokens.end()) *
                      tokens.size() / sum);
    for (const v1::ExpertBalance& of : balance) {
      if (of.layer() == counts.layer()) layer->set_coordinate(of.imbalance());
    }
  }
  figures_.SetExperts(experts);
}

v1::ClusterState Fleet::State() const {
  v1::ClusterState state;
  const View now = view();
  state.set_state(now.state);
  state.set_name(options_.name);
  // Workers look for the model from folders of their own; callers compare it.
  state.set_model(cluster::AbsoluteModel(options_.settings.model()));
  state.set_cluster_file(options_.cluster_file);
  const cluster::MeshShape mesh =
      now.live() ? now.epoch->mesh() : options_.mesh;
  state.mutable_mesh()->set_data(mesh.data);
  state.mutable_mesh()->set_expert(mesh.expert);
  state.mutable_mesh()->set_tensor(mesh.tensor);
  state.set_world_size(options_.mesh.world_size());
  state.set_dtype(options_.settings.dtype());
  state.set_wire(options_.settings.wire());
  state.set_pid(getpid());
  *state.mutable_build() = build_;
  state.set_load_ms(now.load_ms);
  if (!now.error.ok()) {
    state.set_error(std::string(now.error.message()));
    state.set_error_code(static_cast<uint32_t>(now.error.code()));
  }
  // By rank of the fleet; only the epoch's ranks have any.
  std::vector<FleetEpoch::RankProgress> progress(options_.mesh.world_size());
  std::vector<char> serves(options_.mesh.world_size(), 0);
  if (now.epoch != nullptr) {
    state.set_epoch(now.epoch->id());
    state.set_context(now.epoch->context());
    if (now.live()) {
      std::vector<FleetEpoch::RankProgress> of_epoch = now.epoch->Progress();
      for (size_t i = 0; i < of_epoch.size(); ++i) {
        const int rank = now.epoch->members()[i].rank;
        progress[rank] = std::move(of_epoch[i]);
        serves[rank] = 1;
      }
    }
  }
  const FleetRequests::Counts requests = requests_.counts();
  state.set_requests_running(requests.running);
  state.set_requests_waiting(requests.waiting);
  *state.mutable_cache() = requests_.cache_use();
  *state.mutable_figures() = figures_.Read();
  for (const auto& rank : progress) {
    state.set_load_bytes_done(state.load_bytes_done() + rank.bytes_done);
    state.set_load_bytes_total(state.load_bytes_total() + rank.bytes_total);
  }
  const std::vector<Member> members = formation_.Members();
  const auto clock = Deadline::Clock::now();
  for (const Member& member : members) {
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
    worker->set_reload_cause(rank.reload_cause);
    *worker->mutable_figures() = member.figures;
    worker->mutable_figures()->clear_round_trips();
    for (const v1::RoundTrip& trip : member.figures.round_trips()) {
      // The worker knows the ranks of the epoch.
      if (serves[member.rank] == 0 ||
          trip.peer() >= now.epoch->members().size()) {
        continue;
      }
      v1::RoundTrip* const out = worker->mutable_figures()->add_round_trips();
      out->set_peer(now.epoch->members()[trip.peer()].rank);
      out->set_ns(trip.ns());
    }
    worker->set_heartbeat_age_ms(
        absl::ToInt64Milliseconds(absl::FromChrono(clock - member.heard)));
    if (member.lost) {
      worker->set_state(v1::MEMBER_STATE_LOST);
    } else if (now.live() && serves[member.rank] == 0) {
      worker->set_state(v1::MEMBER_STATE_REGISTERED);
    } else if (now.state == v1::FLEET_STATE_READY || rank.loaded) {
      worker->set_state(v1::MEMBER_STATE_READY);
    } else if (now.state == v1::FLEET_STATE_LOADING) {
      worker->set_state(v1::MEMBER_STATE_LOADING);
    } else {
      worker->set_state(v1::MEMBER_STATE_REGISTERED);
    }
  }
  return state;
}

bool Fleet::WaitForChange(uint64_t* version, Deadline deadline) {
  const uint64_t seen = *version;
  *version = changes_.Await(seen, deadline);
  return *version != seen;
}

bool Fleet::FailedForGood(const View& view) const {
  return view.state == v1::FLEET_STATE_FAILED && formation_.HasGivenUp();
}

absl::Status Fleet::WhyNotReady(const View& view) const {
  if (view.state == v1::FLEET_STATE_STOPPING) return view.error;
  if (FailedForGood(view)) {
    absl::Status error = view.error;
    error.SetPayload(kFleetFailedPayload, absl::Cord());
    return error;
  }
  if (view.state == v1::FLEET_STATE_LOADING) {
    return absl::UnavailableError("the fleet is not ready: it loads the model");
  }
  const std::vector<int> missing = formation_.MissingRanks();
  std::string why =
      missing.empty()
          ? "the fleet is not ready: it forms again"
          : absl::StrCat("the fleet is not ready: it waits for worker ",
                         absl::StrJoin(missing, ", "), " of ",
                         options_.mesh.world_size());
  if (!view.error.ok()) absl::StrAppend(&why, " (", view.error.message(), ")");
  return absl::UnavailableError(why);
}

absl::StatusOr<std::shared_ptr<FleetEpoch>> Fleet::ReadyEpoch() const {
  View now = view();
  if (now.state != v1::FLEET_STATE_READY) return WhyNotReady(now);
  return std::move(now.epoch);
}

absl::Status Fleet::WaitReady(Deadline deadline,
                              const std::function<bool()>& cancelled) {
  while (true) {
    const uint64_t seen = changes_.count();
    const View now = view();
    if (now.state == v1::FLEET_STATE_READY) return absl::OkStatus();
    if (now.state == v1::FLEET_STATE_STOPPING || FailedForGood(now) ||
        deadline.Expired()) {
      return WhyNotReady(now);
    }
    changes_.Await(seen, Earlier(deadline, Deadline::After(kFormedPoll)));
    if (cancelled != nullptr && cancelled()) {
      return absl::CancelledError("the caller left before the fleet was ready");
    }
  }
}

absl::Status Fleet::Submit(std::shared_ptr<const Request> request) {
  const View now = view();
  if (FailedForGood(now)) return WhyNotReady(now);
  if (const size_t ids = request->prompt_ids.size();
      options_.most_prompt_ids > 0 && ids > options_.most_prompt_ids) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: ", ids, " tokens, want at most ", options_.most_prompt_ids,
        " (", options_.most_prompt_ids_cause, ")"));
  }
  RF_RETURN_IF_ERROR(requests_.Submit(std::move(request)));
  Wake();
  return absl::OkStatus();
}

absl::Status Fleet::Cancel(absl::string_view id) {
  RF_RETURN_IF_ERROR(requests_.Cancel(id));
  Wake();
  return absl::OkStatus();
}

absl::StatusOr<v1::StatisticsResponse> Fleet::Statistics(
    bool reset_expert_counts, Deadline deadline) {
  RF_ASSIGN_OR_RETURN(const std::shared_ptr<FleetEpoch> epoch, ReadyEpoch());
  v1::StatisticsRequest request;
  request.set_reset_expert_counts(reset_expert_counts);
  // Rank 0 is last: it forgets its counts only once all others have forgotten
  // theirs, so that a caller who gets an error can ask again.
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

std::vector<v1::ExpertBalance> Fleet::BalanceOf(
    const v1::StatisticsResponse& statistics) const {
  const View now = view();
  if (now.epoch == nullptr || IsNarrowed(options_, *now.epoch)) return {};
  return moves_.BalanceOf(statistics);
}

absl::Status Fleet::Rebalance(
    const v1::RebalanceRequest& request, double threshold,
    const std::function<bool(const v1::RebalanceProgress&)>& on_progress) {
  RF_ASSIGN_OR_RETURN(const std::shared_ptr<FleetEpoch> epoch, ReadyEpoch());
  return moves_.Rebalance(*epoch, request, threshold, on_progress);
}

absl::Status Fleet::StartBench(std::shared_ptr<BenchPlanner> bench,
                               bool only_if_idle) {
  const bool free = bench_.AwaitFree();
  RF_RETURN_IF_ERROR(ReadyEpoch().status());
  const auto [running, waiting] = requests_.counts();
  if (free && only_if_idle && running + waiting > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("bench: ", running, " jobs run and ", waiting,
                     " wait, want an idle fleet"));
  }
  RF_RETURN_IF_ERROR(bench_.Take(std::move(bench)));
  Wake();
  return absl::OkStatus();
}

void Fleet::GoOnWithBench(BenchPlanner& bench) {
  bench_.GoOn(bench);
  Wake();
}

void Fleet::CancelBench(BenchPlanner& bench, const absl::Status& cause) {
  bench_.Cancel(bench, cause);
  // It frees its slots, or requests have waited for it.
  Wake();
}

absl::StatusOr<double> Fleet::MeasureHostRead() {
  RF_ASSIGN_OR_RETURN(const std::shared_ptr<FleetEpoch> epoch, ReadyEpoch());
  return coordinator::MeasureHostRead(*epoch);
}

absl::Status Fleet::Trace(
    const v1::TraceRequest& request, const std::function<bool()>& await_end,
    const std::function<void(const v1::TraceProgress&)>& on_progress) {
  RF_ASSIGN_OR_RETURN(const std::shared_ptr<FleetEpoch> epoch, ReadyEpoch());
  return TraceEpoch(*epoch, request, await_end, on_progress);
}

int Fleet::CountHosts() const {
  const View now = view();
  return now.epoch == nullptr ? 0 : CountMachines(now.epoch->members());
}

uint32_t Fleet::context() const {
  const View now = view();
  return now.state == v1::FLEET_STATE_READY ? now.epoch->context() : 0;
}

std::optional<BenchRoom> Fleet::bench_room() const {
  const View now = view();
  if (now.state != v1::FLEET_STATE_READY) return std::nullopt;
  return BenchRoom{.slots = options_.settings.parallel(),
                   .groups = static_cast<uint32_t>(now.epoch->mesh().data),
                   .context = now.epoch->context(),
                   .blocks = now.epoch->cache_blocks()};
}

void Fleet::Shutdown() { End(StoppingError()); }

void Fleet::End(const absl::Status& cause) {
  std::shared_ptr<FleetEpoch> epoch;
  {
    MutexLock lock(&mu_);
    if (view_.state == v1::FLEET_STATE_STOPPING) return;
    view_.state = v1::FLEET_STATE_STOPPING;
    view_.error = cause;
    epoch = view_.epoch;
  }
  changes_.Note();
  if (epoch != nullptr) epoch->Stop(cause);
  growth_.Stop(cause);
  main_.join();
  watchdog_.join();
  moves_.Stop();
}

void Fleet::Main() {
  while (const std::shared_ptr<FleetEpoch> epoch = NextEpoch()) {
    EpochSteps steps(*epoch, requests_, bench_, moves_, figures_);
    const absl::Status cause = RunEpoch(epoch, steps);
    EndEpoch(*epoch, cause, steps.stepped());
  }
  requests_.Stop(view().error);
}

std::shared_ptr<FleetEpoch> Fleet::NextEpoch() {
  while (true) {
    const uint64_t seen = changes_.count();
    if (stopping()) return nullptr;
    const cluster::ExpertLayout layout = moves_.layout();
    const View now = view();
    const absl::Status why = WhyNotReady(now);
    if (FailedForGood(now)) requests_.FailAll(why);
    requests_.TellWaiting(std::string(why.message()));
    if (formation_.CanForm(layout) && !growth_.loading()) {
      std::optional<Formation::NextEpoch> next = formation_.TakeNext(layout);
      if (next.has_value()) return BeginEpoch(*std::move(next));
    }
    changes_.Await(seen, Deadline::After(kTick));
  }
}

std::shared_ptr<FleetEpoch> Fleet::BeginEpoch(Formation::NextEpoch next) {
  const size_t ranks = next.members.size();
  const auto epoch = std::make_shared<FleetEpoch>(
      std::move(next.options), next.id, std::move(next.members),
      std::move(next.fingerprint), [this] { changes_.Note(); });
  std::shared_ptr<FleetEpoch> last;  // Joins its threads without the lock.
  {
    MutexLock lock(&mu_);
    if (view_.state == v1::FLEET_STATE_STOPPING) return nullptr;
    view_.state = v1::FLEET_STATE_LOADING;
    last = std::exchange(view_.epoch, epoch);
  }
  changes_.Note();
  requests_.TellWaiting(std::string(WhyNotReady(view()).message()));
  RF_LOG(kInfo, "epoch ", epoch->id(), ": loading ", options_.settings.model(),
         " on ", ranks, " of ", options_.mesh.world_size(), " workers");
  return epoch;
}

absl::Status Fleet::RunEpoch(const std::shared_ptr<FleetEpoch>& epoch,
                             EpochSteps& steps) {
  const absl::Time start = absl::Now();
  RF_RETURN_IF_ERROR(epoch->Form());
  const auto groups = static_cast<uint32_t>(epoch->mesh().data);
  requests_.Open(
      {.id = epoch->id(),
       .groups = groups,
       .slots = options_.GroupSlots(),
       .context = epoch->context(),
       .blocks = epoch->cache_blocks(),
       .reuse = ReuseOf(options_.settings.prefix_cache()),
       .reproducible = options_.settings.reproducible(),
       .step_time = std::chrono::milliseconds(options_.settings.step_ms()),
       .batch_step_time = BatchStepOf(options_.settings)});
  bench_.Open(
      {.id = epoch->id(),
       .groups = groups,
       .group_slots = options_.GroupSlots(),
       .workers = absl::StrCat(epoch->members().size(), " of ",
                               options_.mesh.world_size(), " workers serve")});
  moves_.Open(epoch);
  growth_.Open(epoch);
  formation_.NoteReady(epoch->fingerprint());
  const double load_ms = absl::ToDoubleMilliseconds(absl::Now() - start);
  {
    MutexLock lock(&mu_);
    if (view_.state == v1::FLEET_STATE_STOPPING) return view_.error;
    view_.state = v1::FLEET_STATE_READY;
    view_.error = absl::OkStatus();
    view_.load_ms = load_ms;
  }
  figures_.OnReady();
  changes_.Note();
  RF_LOG(kInfo, "epoch ", epoch->id(), ": ready after ", load_ms,
         " ms, context ", epoch->context(), ", ", epoch->cache_blocks(),
         " cache blocks in each data group");
  return epoch->RunSteps(steps);
}

void Fleet::EndEpoch(const FleetEpoch& epoch, const absl::Status& cause,
                     bool stepped) {
  const bool handed_over = growth_.Close(cause);
  formation_.NoteEnd(epoch, {.handed_over = handed_over,
                             .planned = requests_.last_step() > 0,
                             .stepped = stepped});
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    stopping = view_.state == v1::FLEET_STATE_STOPPING;
    if (!stopping) {
      view_.state = v1::FLEET_STATE_FAILED;
      if (!handed_over) view_.error = cause;
    }
  }
  if (stopping) {
    // No epoch follows.
  } else if (handed_over) {
    RF_LOG(kInfo, "epoch ", epoch.id(), " has ended: ", cause.message());
  } else {
    RF_LOG(kError, "epoch ", epoch.id(), " has failed: ", cause.message());
  }
  figures_.OnEnd(/*failed=*/!handed_over && !stopping);
  moves_.Close(cause);
  bench_.Close(cause);
  requests_.Close(cause, /*failed=*/!handed_over && !stopping);
  changes_.Note();
}

void Fleet::Wake() {
  const std::shared_ptr<FleetEpoch> epoch = view().epoch;
  if (epoch != nullptr) epoch->Wake();
  changes_.Note();
}

void Fleet::ReportGone() {
  const View now = view();
  if (!now.live()) return;
  for (const Formation::GoneMember& gone :
       formation_.FindGone(now.epoch->members())) {
    now.epoch->ReportLost(gone.member_id, gone.why);
  }
}

void Fleet::Watchdog() {
  Deadline::Clock::time_point looked = Deadline::Clock::now();
  while (true) {
    // The steps of the fleet also note changes: wait for the whole tick.
    const Deadline tick = Deadline::After(kTick);
    while (!tick.Expired()) {
      const uint64_t seen = changes_.count();
      if (stopping()) return;
      changes_.Await(seen, tick);
    }
    // A process that was stopped has heard nobody meanwhile.
    const auto last = std::exchange(looked, Deadline::Clock::now());
    const absl::Duration late = absl::FromChrono(looked - last) - kTick;
    if (late > options_.lease / 4) formation_.ProlongLeases(late);
    const std::vector<Member> lost = formation_.Expire();
    for (const Member& member : lost) {
      RF_LOG(kWarning, member.Description(), " has lost its lease");
    }
    if (!lost.empty()) changes_.Note();
    // Looks at all members: one may have gone while its epoch began.
    ReportGone();
    const View now = view();
    if (now.epoch != nullptr) now.epoch->Tick();
    // A load is no wait for a lost host.
    requests_.Expire(now.state == v1::FLEET_STATE_LOADING,
                     options_.recovery_wait, WhyNotReady(now));
  }
}

}  // namespace ringfleet::coordinator
