// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/expert_moves.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/first_layout.h"
#include "coordinator/fleet/formation.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;
using cluster::ExpertLayout;

// Bytes that a coordinate loads beside its shard before experts change
// coordinates; at least one layer's.
constexpr uint64_t kRoundBytes = uint64_t{1} << 30;
// For all of a round to be loaded, from a slow disk.
constexpr absl::Duration kPrepareTime = absl::Minutes(30);
// From then to the step between two others: a benchmark may have to end first.
constexpr absl::Duration kSwitchTime = absl::Minutes(2);

absl::StatusOr<cluster::PlacementPolicy> PolicyOf(v1::ExpertPolicy policy) {
  switch (policy) {
    case v1::EXPERT_POLICY_UNSPECIFIED:
    case v1::EXPERT_POLICY_GLOBAL:
      return cluster::PlacementPolicy::kGlobal;
    case v1::EXPERT_POLICY_HIERARCHICAL:
      return cluster::PlacementPolicy::kHierarchical;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("rebalance: policy ", static_cast<int>(policy),
                       ", want global or hierarchical"));
  }
}

// [facts.layers][experts] tokens of an average step.
absl::StatusOr<std::vector<std::vector<double>>> AverageTokens(
    const ExpertFacts& facts, const v1::StatisticsResponse& statistics) {
  std::vector<std::vector<double>> tokens(
      facts.layers.size(), std::vector<double>(facts.num_experts, 0.0));
  for (size_t row = 0; row < facts.layers.size(); ++row) {
    for (const v1::ExpertCounts& counts : statistics.layers()) {
      if (static_cast<int>(counts.layer()) != facts.layers[row]) continue;
      if (counts.average_size() != facts.num_experts) {
        return absl::InternalError(
            absl::StrCat("rebalance: averages of ", counts.average_size(),
                         " experts, want ", facts.num_experts));
      }
      tokens[row].assign(counts.average().begin(), counts.average().end());
    }
  }
  return tokens;
}

v1::RebalanceProposal ToProto(const BalanceProposal& proposal) {
  v1::RebalanceProposal message;
  message.set_imbalance_before(proposal.before);
  message.set_imbalance_after(proposal.after);
  message.set_bytes_to_load(proposal.bytes_to_load);
  for (const BalancedLayer& layer : proposal.layers) {
    v1::RebalanceProposal::Layer* out = message.add_layers();
    out->set_layer(static_cast<uint32_t>(layer.layer));
    out->set_imbalance_before(layer.before);
    out->set_imbalance_after(layer.after);
    out->set_experts_to_load(static_cast<uint32_t>(layer.loaded));
  }
  return message;
}

// `now` on the way to the proposal: as many layers as one round may load, from
// `*next` on, which moves behind them.
absl::StatusOr<ExpertLayout> NextRound(const ExpertLayout& now,
                                       const BalanceProposal& proposal,
                                       uint64_t expert_bytes, size_t* next) {
  ExpertLayout round = now;
  uint64_t bytes = 0;
  for (; *next < proposal.layers.size(); ++*next) {
    const BalancedLayer& layer = proposal.layers[*next];
    const uint64_t more = layer.loaded * expert_bytes;
    if (bytes > 0 && bytes + more > kRoundBytes) break;
    bytes += more;
    std::vector<std::vector<int32_t>> held;
    for (int coordinate = 0; coordinate < now.num_coordinates(); ++coordinate) {
      const auto experts = proposal.layout.Held(layer.layer, coordinate);
      held.emplace_back(experts.begin(), experts.end());
    }
    RF_RETURN_IF_ERROR(round.SetLayer(layer.layer, std::move(held)));
  }
  return round;
}

// Tells of the bytes of all ranks together, and keeps the first failure.
class RoundProgress {
 public:
  RoundProgress(size_t ranks, uint64_t done_before, uint64_t total,
                const std::function<bool(uint64_t, uint64_t)>& report)
      : ranks_(ranks, 0),
        done_before_(done_before),
        total_(total),
        report_(report) {}

  // False: the others need not go on.
  bool Note(int rank, uint64_t bytes) {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return false;
    ranks_[rank] = bytes;
    uint64_t done = done_before_;
    for (const uint64_t of_rank : ranks_) done += of_rank;
    return report_(std::min(done, total_), total_);
  }
  void Fail(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (failure_.ok()) failure_ = status;
  }
  absl::Status failure() {
    MutexLock lock(&mu_);
    return failure_;
  }
  uint64_t done() {
    MutexLock lock(&mu_);
    uint64_t done = done_before_;
    for (const uint64_t of_rank : ranks_) done += of_rank;
    return done;
  }

 private:
  Mutex mu_;
  std::vector<uint64_t> ranks_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  const uint64_t done_before_;
  const uint64_t total_;
  const std::function<bool(uint64_t, uint64_t)>& report_;
};

// Every rank loads what it lacks, until one cannot.
absl::Status PrepareAll(FleetEpoch& epoch,
                        const v1::PrepareExpertsRequest& request,
                        RoundProgress& progress) {
  std::vector<std::thread> threads;
  for (const Member& member : epoch.members()) {
    threads.emplace_back([&epoch, &request, &progress, &member] {
      const absl::Status status =
          epoch.client(member.rank)
              .PrepareExperts(request, Deadline::After(kPrepareTime),
                              [&](uint64_t done) {
                                return progress.Note(member.rank, done);
                              });
      if (!status.ok()) {
        progress.Fail(Annotate(status, member.Description()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return progress.failure();
}

}  // namespace

ExpertMoves::ExpertMoves(const FleetOptions& fleet)
    : fleet_(fleet),
      closed_(absl::UnavailableError("no epoch runs")),
      layout_(fleet.layout),
      coordinate_replicas_(fleet.experts.coordinate_replicas) {
  if (fleet_.RebalanceInterval() > absl::ZeroDuration()) {
    thread_ = std::thread([this] { Run(); });
  }
}

ExpertMoves::~ExpertMoves() { Stop(); }

void ExpertMoves::Open(std::shared_ptr<FleetEpoch> epoch) {
  const bool whole = !IsNarrowed(fleet_, *epoch);
  MutexLock lock(&mu_);
  if (whole && layout_ != epoch->layout()) {
    layout_ = epoch->layout();
    coordinate_replicas_ =
        ReplicasIn(layout_, fleet_.experts).value_or(coordinate_replicas_);
  }
  epoch_ = std::move(epoch);
}

void ExpertMoves::Close(const absl::Status& cause) {
  std::shared_ptr<FleetEpoch> last;  // Given up without the lock.
  MutexLock lock(&mu_);
  last = std::exchange(epoch_, nullptr);
  closed_ = cause;
  EndSwitch(cause);
}

void ExpertMoves::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

cluster::ExpertLayout ExpertMoves::layout() const {
  MutexLock lock(&mu_);
  return layout_;
}

std::vector<v1::ExpertBalance> ExpertMoves::BalanceOf(
    const v1::StatisticsResponse& statistics) const {
  const ExpertFacts& facts = fleet_.experts;
  std::vector<v1::ExpertBalance> balance;
  const auto tokens = AverageTokens(facts, statistics);
  if (facts.num_coordinates < 2 || !tokens.ok()) return balance;
  const ExpertLayout now = layout();
  for (size_t row = 0; row < facts.layers.size(); ++row) {
    const int layer = facts.layers[row];
    std::vector<double> costs;
    for (const double count : (*tokens)[row]) {
      costs.push_back(ExpectedCost(count));
    }
    v1::ExpertBalance& out = balance.emplace_back();
    out.set_layer(static_cast<uint32_t>(layer));
    out.set_imbalance(Imbalance(now, layer, costs));
    for (int coordinate = 0; coordinate < facts.num_coordinates; ++coordinate) {
      out.set_held(out.held() +
                   static_cast<uint32_t>(now.Held(layer, coordinate).size()));
    }
  }
  return balance;
}

absl::Status ExpertMoves::Rebalance(FleetEpoch& epoch,
                                    const v1::RebalanceRequest& request,
                                    double threshold,
                                    const OnProgress& on_progress) {
  ExpertFacts facts = fleet_.experts;
  if (facts.layers.empty() || facts.num_coordinates < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rebalance: the mesh's data and expert axes are ", fleet_.mesh.data,
        " x ", fleet_.mesh.expert,
        ", want 2 or more: every rank has a part of each expert, so all are "
        "equally busy"));
  }
  if (fleet_.settings.reproducible() && !request.dry_run()) {
    return absl::FailedPreconditionError(
        "rebalance: the fleet is reproducible, and experts that move change "
        "bits; want --dry-run, or a fleet without `reproducible`");
  }
  if (IsNarrowed(fleet_, epoch)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rebalance: ", epoch.members().size(), " of ", fleet_.mesh.world_size(),
        " workers serve; experts move again when all do"));
  }
  {
    MutexLock lock(&mu_);
    if (moving_) {
      return absl::FailedPreconditionError(
          "rebalance: experts are moving already");
    }
    facts.coordinate_replicas = coordinate_replicas_;
    if (request.slots() > 0) {
      RF_ASSIGN_OR_RETURN(facts.coordinate_replicas,
                          DealReplicas(static_cast<int>(std::min<uint32_t>(
                                           request.slots(), 1u << 30)),
                                       facts.num_experts, facts.num_coordinates,
                                       facts.coordinate_memory));
    }
    moving_ = true;
  }
  const absl::Status status =
      Move(epoch, facts, request, threshold, on_progress);
  MutexLock lock(&mu_);
  moving_ = false;
  if (status.ok() && !request.dry_run()) {
    coordinate_replicas_ = facts.coordinate_replicas;
  }
  return status;
}

absl::Status ExpertMoves::Move(FleetEpoch& epoch, const ExpertFacts& facts,
                               const v1::RebalanceRequest& request,
                               double threshold,
                               const OnProgress& on_progress) {
  RF_ASSIGN_OR_RETURN(const cluster::PlacementPolicy policy,
                      PolicyOf(request.policy()));
  RF_ASSIGN_OR_RETURN(
      const v1::StatisticsResponse statistics,
      epoch.client(0).Statistics(v1::StatisticsRequest(),
                                 Deadline::After(kStatisticsTimeout)));
  RF_ASSIGN_OR_RETURN(const auto tokens, AverageTokens(facts, statistics));
  ExpertLayout now;
  {
    MutexLock lock(&mu_);
    now = layout_;
  }
  RF_ASSIGN_OR_RETURN(const BalanceProposal proposal,
                      ProposeLayout(facts, now, tokens, policy,
                                    CountMachines(epoch.members())));
  v1::RebalanceProgress progress;
  *progress.mutable_proposal() = ToProto(proposal);
  const auto left = [] {
    return absl::CancelledError("rebalance: the caller left");
  };
  if (!on_progress(progress)) return left();
  if (request.dry_run() || proposal.before < threshold) return absl::OkStatus();

  if (proposal.layout == now) return absl::OkStatus();
  const uint64_t total = proposal.bytes_to_load;
  uint64_t done = 0;
  const std::function<bool(uint64_t, uint64_t)> report = [&](uint64_t bytes,
                                                             uint64_t of) {
    v1::RebalanceProgress loading;
    loading.mutable_loading()->set_bytes_done(bytes);
    loading.mutable_loading()->set_bytes_total(of);
    return on_progress(loading);
  };
  for (size_t next = 0; next < proposal.layers.size();) {
    RF_ASSIGN_OR_RETURN(ExpertLayout round,
                        NextRound(now, proposal, facts.expert_bytes, &next));
    if (round == now) continue;
    v1::PrepareExpertsRequest prepare;
    prepare.set_epoch(epoch.id());
    *prepare.mutable_layout() = round.Difference(now);
    {
      MutexLock lock(&mu_);
      prepare.set_move(++last_number_);
    }
    RoundProgress of_round(epoch.members().size(), done, total, report);
    RF_RETURN_IF_ERROR(PrepareAll(epoch, prepare, of_round));
    done = of_round.done();
    RF_RETURN_IF_ERROR(SwitchTo(epoch, prepare.move(), round));
    now = std::move(round);
  }
  for (const Member& member : epoch.members()) {
    const auto held = epoch.client(member.rank)
                          .Statistics(v1::StatisticsRequest(),
                                      Deadline::After(kStatisticsTimeout));
    RF_RETURN_IF_ERROR(Annotate(held.status(), member.Description()));
    epoch.SetResidentBytes(member.rank, held->resident_bytes());
  }
  RF_LOG(kInfo, "experts moved: ", done >> 20, " MiB loaded, imbalance ",
         proposal.before, " -> ", proposal.after);
  return absl::OkStatus();
}

void ExpertMoves::Run() {
  while (true) {
    std::shared_ptr<FleetEpoch> epoch;
    {
      MutexLock lock(&mu_);
      const Deadline next = Deadline::After(fleet_.RebalanceInterval());
      while (!stopping_ && !next.Expired()) {
        changed_.WaitUntil(&mu_, next.when());
      }
      if (stopping_) return;
      epoch = epoch_;
    }
    if (epoch == nullptr || IsNarrowed(fleet_, *epoch)) continue;
    const absl::Status status = Rebalance(*epoch, v1::RebalanceRequest(),
                                          fleet_.settings.experts().threshold(),
                                          [this](const v1::RebalanceProgress&) {
                                            MutexLock lock(&mu_);
                                            return !stopping_;
                                          });
    if (!status.ok()) RF_LOG(kWarning, "experts stay: ", status.message());
  }
}

absl::Status ExpertMoves::SwitchTo(FleetEpoch& epoch, uint64_t number,
                                   const ExpertLayout& layout) {
  const auto pending = std::make_shared<Switch>();
  pending->number = number;
  pending->layout = layout;
  const Deadline deadline = Deadline::After(kSwitchTime);
  {
    MutexLock lock(&mu_);
    if (epoch_.get() != &epoch) return closed_;
    switch_ = pending;
  }
  epoch.Wake();
  MutexLock lock(&mu_);
  while (!pending->ended && pending->step == 0) {
    if (deadline.Expired()) {
      switch_.reset();
      return absl::DeadlineExceededError(
          "rebalance: no step came between others; a benchmark runs");
    }
    changed_.WaitUntil(&mu_, deadline.when());
  }
  // The step has a limit of its own.
  while (!pending->ended) changed_.Wait(&mu_);
  return pending->status;
}

bool ExpertMoves::awaits_step() const {
  MutexLock lock(&mu_);
  return switch_ != nullptr && switch_->step == 0;
}

void ExpertMoves::AddTo(v1::StepPlan* plan) {
  MutexLock lock(&mu_);
  if (switch_ == nullptr || switch_->step != 0) return;
  plan->set_expert_move(switch_->number);
  switch_->step = plan->step();
  changed_.NotifyAll();
}

void ExpertMoves::OnResult(uint64_t step) {
  MutexLock lock(&mu_);
  if (switch_ == nullptr || switch_->step == 0 || step < switch_->step) return;
  layout_ = std::move(switch_->layout);
  EndSwitch(absl::OkStatus());
}

void ExpertMoves::EndSwitch(const absl::Status& status) {
  if (switch_ == nullptr) return;
  switch_->status = status;
  switch_->ended = true;
  switch_.reset();
  changed_.NotifyAll();
}

}  // namespace ringfleet::coordinator
