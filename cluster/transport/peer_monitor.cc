// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_monitor.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

// A peer heard within a heartbeat and a half is known to be alive.
constexpr absl::Duration kFresh = absl::Milliseconds(150);
// A longer round trip is no time of this epoch's heartbeats.
constexpr int64_t kLongestRoundTripNs = int64_t{60} * 1000 * 1000 * 1000;

uint64_t SteadyNs(PeerMonitor::Time time) {
  return static_cast<uint64_t>(
      absl::ToInt64Nanoseconds(absl::FromChrono(time.time_since_epoch())));
}

}  // namespace

PeerMonitor::PeerMonitor(uint64_t epoch, int rank,
                         std::vector<std::string> addresses,
                         const FlightRecorder* recorder,
                         RoundTrips* round_trips)
    : epoch_(epoch),
      rank_(rank),
      recorder_(recorder),
      round_trips_(round_trips),
      watch_(rank, addresses),
      heard_(addresses.size()),
      probe_addresses_(std::move(addresses)),
      probes_(probe_addresses_.size()) {
  if (round_trips_ != nullptr) round_trips_->Clear();
}

void PeerMonitor::Start(Time now) {
  watch_.Start(now);
  started_ = true;
}

void PeerMonitor::SetProbeAddress(int peer, std::string address) {
  probe_addresses_[peer] = std::move(address);
}

std::vector<int> PeerMonitor::OtherRanks(
    const google::protobuf::RepeatedField<uint32_t>& ranks, int peer) const {
  std::vector<int> others;
  for (const uint32_t rank : ranks) {
    if (rank < probes_.size() && static_cast<int>(rank) != peer) {
      others.push_back(static_cast<int>(rank));
    }
  }
  return others;
}

void PeerMonitor::OnHeartbeat(int peer, const Heartbeat& heartbeat, Time now) {
  Activity activity;
  activity.known = !heartbeat.unknown();
  activity.running = heartbeat.operation().running();
  activity.group = heartbeat.operation().group();
  activity.sequence = heartbeat.operation().sequence();
  activity.op_descriptor = heartbeat.operation().op_descriptor();
  activity.waiting_for = OtherRanks(heartbeat.waiting_for(), peer);
  activity.unheard = OtherRanks(heartbeat.unheard(), peer);
  watch_.OnHeartbeat(peer, std::move(activity), now);
  heard_[peer] = {.sent_ns = heartbeat.sent_ns(), .at = now};
  if (round_trips_ == nullptr || heartbeat.echo_ns() == 0) return;
  // The peer's numbers may be anything.
  const auto round_trip = static_cast<int64_t>(
      SteadyNs(now) - heartbeat.echo_ns() - heartbeat.kept_ns());
  if (round_trip < 0 || round_trip > kLongestRoundTripNs) return;
  round_trips_->Note(peer, static_cast<uint64_t>(round_trip));
}

void PeerMonitor::AddEcho(int peer, Time now, Heartbeat* heartbeat) const {
  heartbeat->set_sent_ns(SteadyNs(now));
  const Heard& heard = heard_[peer];
  heartbeat->set_echo_ns(heard.sent_ns);
  heartbeat->set_kept_ns(
      heard.sent_ns == 0 ? 0 : SteadyNs(now) - SteadyNs(heard.at));
}

std::optional<PeerWatch::Verdict> PeerMonitor::Tick(Time now) {
  if (!started_) return std::nullopt;
  watch_.Tick(now);
  for (int peer = 0; peer < static_cast<int>(probes_.size()); ++peer) {
    if (peer == rank_) continue;
    PollProbe(peer, now);
    if (watch_.WantsProbe(peer, now)) BeginProbe(peer, now);
  }
  return watch_.FindLost(now);
}

bool PeerMonitor::HeartbeatDue(Time now) {
  if (last_heartbeat_.has_value() &&
      absl::FromChrono(now - *last_heartbeat_) < PeerWatch::kHeartbeatPeriod) {
    return false;
  }
  last_heartbeat_ = now;
  return true;
}

PeerMonitor::Heartbeat PeerMonitor::MakeHeartbeat(
    absl::Span<const int> waiting_for, Time now) const {
  const Activity own = OwnActivity();
  Heartbeat heartbeat;
  heartbeat.set_unknown(!own.known);
  if (own.sequence != 0) {
    auto& operation = *heartbeat.mutable_operation();
    operation.set_group(own.group);
    operation.set_sequence(own.sequence);
    operation.set_op_descriptor(own.op_descriptor);
    operation.set_running(own.running);
  }
  for (const int rank : waiting_for) {
    heartbeat.add_waiting_for(static_cast<uint32_t>(rank));
  }
  if (!started_) return heartbeat;
  for (const int rank : watch_.Unheard(now)) {
    heartbeat.add_unheard(static_cast<uint32_t>(rank));
  }
  return heartbeat;
}

Activity PeerMonitor::OwnActivity() const {
  Activity own;
  own.known = recorder_ != nullptr;
  if (!own.known) return own;
  const std::optional<FlightRecord> latest = recorder_->Latest();
  if (!latest.has_value() || latest->epoch != epoch_) return own;
  own.running = latest->state == FlightRecord::State::kRunning;
  own.group = latest->group;
  own.sequence = latest->sequence;
  own.op_descriptor = latest->op_descriptor;
  return own;
}

void PeerMonitor::BeginProbe(int peer, Time now) {
  if (probes_[peer] != nullptr) return;
  watch_.OnProbeBegin(peer, now);
  probes_[peer] =
      std::make_unique<ReachabilityProbe>(probe_addresses_[peer], now);
  PollProbe(peer, now);
}

void PeerMonitor::PollProbe(int peer, Time now) {
  if (probes_[peer] == nullptr) return;
  const ReachabilityProbe::Result result = probes_[peer]->Poll(now);
  if (result == ReachabilityProbe::Result::kPending) return;
  watch_.OnProbe(peer, result);
  probes_[peer].reset();
}

bool PeerMonitor::Settled(Time now) {
  if (!started_) return true;
  watch_.Tick(now);
  bool settled = !watch_.WasAway(now);
  for (int peer = 0; peer < static_cast<int>(probes_.size()); ++peer) {
    if (peer == rank_) continue;
    PollProbe(peer, now);
    if (watch_.SilentFor(peer, now) < kFresh) continue;
    if (watch_.Probed(peer) == ReachabilityProbe::Result::kUnknown) {
      BeginProbe(peer, now);
    }
    settled &= probes_[peer] == nullptr &&
               watch_.SilentFor(peer, now) >= PeerWatch::kSilent;
  }
  return settled;
}

bool PeerMonitor::AskClosed(int peer, Time now) {
  BeginProbe(peer, now);
  return watch_.Probed(peer) == ReachabilityProbe::Result::kRefused;
}

std::string PeerMonitor::ExplainClosed(int peer, Time now) {
  PollProbe(peer, now);
  const std::string text = watch_.ExplainClosed(peer);
  return text.empty() ? "" : absl::StrCat("; ", text);
}

}  // namespace ringfleet::cluster
