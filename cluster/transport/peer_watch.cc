// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ringfleet::cluster {
namespace {

using Time = PeerWatch::Time;
using Result = ReachabilityProbe::Result;

// How long a pause of this process remains an explanation.
constexpr absl::Duration kAwayMatters = absl::Seconds(1);

// The time between probes doubles so often at most: to more than two days.
constexpr int kMostDoublings = 20;

std::string SecondsText(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(10)));
}

std::string OperationText(const Activity& activity) {
  std::string text = absl::StrCat(DescriptorName(activity.op_descriptor), " #",
                                  activity.sequence);
  if (activity.group != 0) {
    absl::StrAppend(&text, " of group ", activity.group);
  }
  return text;
}

std::string Operations(uint64_t count) {
  return absl::StrCat(count, count == 1 ? " operation" : " operations");
}

}  // namespace

PeerWatch::PeerWatch(int rank, std::vector<std::string> addresses)
    : rank_(rank),
      addresses_(std::move(addresses)),
      peers_(addresses_.size()) {}

std::string PeerWatch::Name(int peer) const {
  return absl::StrCat("rank ", peer, " (", addresses_[peer], ")");
}

void PeerWatch::Start(Time now) {
  for (Peer& peer : peers_) peer.heard = now;
  last_tick_ = now;
}

void PeerWatch::Tick(Time now) {
  const Time::duration pause = now - last_tick_;
  last_tick_ = now;
  const bool away = absl::FromChrono(pause) >= kSilent;
  if (away) {
    away_ = absl::FromChrono(pause);
    away_until_ = now;
  }
  for (Peer& peer : peers_) {
    if (std::exchange(peer.frame_came, false)) {
      peer.heard = now;
      peer.unanswered = 0;
      peer.connected = 0;
    } else if (away) {
      peer.heard = std::min(peer.heard + pause, now);
    }
  }
}

void PeerWatch::OnHeartbeat(int peer, Activity activity, Time now) {
  Peer& from = peers_[peer];
  from.heard = now;
  from.activity = std::move(activity);
  from.unanswered = 0;
  from.connected = 0;
}

bool PeerWatch::WantsProbe(int peer, Time now) const {
  const Time begin = peers_[peer].probe_begin;
  const int doublings =
      std::clamp(peers_[peer].connected - 1, 0, kMostDoublings);
  return SilentFor(peer, now) >= kSilent &&
         (begin == Time::min() ||
          absl::FromChrono(now - begin) >= kProbePeriod * (1 << doublings));
}

void PeerWatch::OnProbeBegin(int peer, Time now) {
  peers_[peer].probe_begin = now;
  peers_[peer].probing = true;
}

void PeerWatch::OnProbe(int peer, Result result) {
  Peer& about = peers_[peer];
  about.probing = false;
  about.probed = result;
  about.probed_begin = about.probe_begin;
  about.unanswered = result == Result::kNoAnswer ? about.unanswered + 1 : 0;
  if (result == Result::kConnected) ++about.connected;
}

Result PeerWatch::Probed(int peer) const {
  const Peer& about = peers_[peer];
  return about.probed_begin >= about.heard ? about.probed : Result::kUnknown;
}

absl::Duration PeerWatch::SilentFor(int peer, Time now) const {
  const Peer& about = peers_[peer];
  return about.left || about.frame_came || now < about.heard
             ? absl::ZeroDuration()
             : absl::FromChrono(now - about.heard);
}

std::vector<int> PeerWatch::Unheard(Time now) const {
  std::vector<int> peers;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer != rank_ && SilentFor(peer, now) >= kSilent) peers.push_back(peer);
  }
  return peers;
}

bool PeerWatch::QueueMayBeFull(int peer) const {
  const int askers = static_cast<int>(peers_.size()) - 1;
  return peers_[peer].connected * askers >= kQueuedProbes;
}

bool PeerWatch::Unanswered(int peer, Time now) const {
  return SilentFor(peer, now) >= kGone &&
         peers_[peer].unanswered >= kUnanswered && !QueueMayBeFull(peer);
}

bool PeerWatch::CutOff(Time now) const {
  int unanswered = 0;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (!Expected(peer)) continue;
    const Result probed = Probed(peer);
    if (SilentFor(peer, now) < kSilent || probed == Result::kConnected ||
        probed == Result::kRefused) {
      return false;
    }
    unanswered += probed == Result::kNoAnswer && !QueueMayBeFull(peer);
  }
  return unanswered >= 2;
}

std::string PeerWatch::CutOffText() const {
  int expected = 0;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    expected += Expected(peer);
  }
  return absl::StrCat("this rank reaches none of its ", expected,
                      " peers and suspects itself");
}

std::optional<PeerWatch::Verdict> PeerWatch::FindLost(Time now) const {
  const bool cut_off = CutOff(now);
  int lost = -1;
  int unanswered = 0;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (!Expected(peer) || SilentFor(peer, now) < kGone) continue;
    const bool no_answer = Unanswered(peer, now);
    unanswered += no_answer;
    if (lost < 0 && (no_answer || Probed(peer) == Result::kRefused)) {
      lost = peer;
    }
  }
  if (lost < 0) return std::nullopt;
  const std::string text =
      absl::StrCat(Name(lost), ", which ", FindSilent(lost, now).text);
  if (!cut_off) return Verdict{.suspect = lost, .text = "lost " + text};
  // The probes of the next peer end a little later.
  if (unanswered < 2) {
    if (SilentFor(lost, now) < kGone + kProbePeriod) return std::nullopt;
    return Verdict{.suspect = lost, .text = "lost " + text};
  }
  return Verdict{.suspect = rank_,
                 .text = absl::StrCat(CutOffText(), "; the first is ", text)};
}

PeerWatch::Finding PeerWatch::FindSilent(int peer, Time now) const {
  const std::string silence =
      absl::StrCat("silent for ", SecondsText(SilentFor(peer, now)));
  Finding finding = {.weight = Weight::kGone, .rank = peer};
  switch (Probed(peer)) {
    case Result::kRefused:
      finding.text = absl::StrCat("has ended: ", silence,
                                  ", and nobody listens at its address");
      break;
    case Result::kNoAnswer:
      if (QueueMayBeFull(peer)) {
        finding.weight = Weight::kSilent;
        finding.text =
            absl::StrCat("is stopped or unreachable: ", silence,
                         ", and its host accepts no more connections");
        break;
      }
      finding.text = absl::StrCat("is unreachable: ", silence,
                                  ", and its host does not answer");
      break;
    case Result::kConnected:
      finding.weight = Weight::kSilent;
      finding.text = absl::StrCat("is stopped or starved: ", silence,
                                  ", though its host accepts connections");
      break;
    case Result::kPending:
    case Result::kUnknown:
      finding.weight = Weight::kSilent;
      finding.text = absl::StrCat("has been ", silence);
      if (peers_[peer].probing) {
        absl::StrAppend(
            &finding.text, ", and its host has not answered for ",
            SecondsText(absl::FromChrono(now - peers_[peer].probe_begin)));
      }
      break;
  }
  return finding;
}

PeerWatch::Finding PeerWatch::FindAlive(int peer, const Activity& own) const {
  const Activity& theirs = peers_[peer].activity;
  Finding finding = {.weight = Weight::kElsewhere, .rank = peer};
  if (!theirs.known) {
    finding.weight = Weight::kSlow;
    finding.text = "is alive";
  } else if (theirs.sequence == 0) {
    finding.text = "is alive, but idle: it has not entered any operation";
  } else if (!own.known || theirs.group != own.group) {
    finding.text =
        theirs.running
            ? absl::StrCat("is alive, in ", OperationText(theirs))
            : absl::StrCat("is alive, but idle since ", OperationText(theirs));
  } else if (theirs.sequence < own.sequence) {
    finding.text =
        theirs.running
            ? absl::StrCat("is alive, in ", OperationText(theirs), ", ",
                           Operations(own.sequence - theirs.sequence),
                           " behind")
            : absl::StrCat(
                  "is alive, but idle: it has not entered this "
                  "operation, its last was ",
                  OperationText(theirs));
  } else if (theirs.sequence > own.sequence) {
    finding.text =
        absl::StrCat("is alive, in ", OperationText(theirs), ", ",
                     Operations(theirs.sequence - own.sequence), " ahead");
  } else if (theirs.op_descriptor != own.op_descriptor) {
    finding.text = absl::StrCat("is alive, but in another operation, ",
                                OperationText(theirs));
  } else if (!theirs.running) {
    finding.text =
        "is alive and has finished the operation, but its frames do not "
        "arrive";
  } else {
    finding.weight = Weight::kSlow;
    finding.text = "is alive and in the same operation, but slow";
  }
  return finding;
}

PeerWatch::Finding PeerWatch::Find(int peer, const Activity& own, Time now,
                                   std::vector<bool>& visited) const {
  visited[peer] = true;
  const Peer& about = peers_[peer];
  if (SilentFor(peer, now) >= kSilent || Probed(peer) == Result::kRefused) {
    return FindSilent(peer, now);
  }
  if (about.left) {
    return {
        .weight = Weight::kGone, .rank = peer, .text = "has left the epoch"};
  }
  const Finding finding = FindAlive(peer, own);
  if (!about.activity.running || about.activity.waiting_for.empty()) {
    return finding;
  }
  // Wherever it is, it is held up itself. Follow to whoever has the best
  // reason, seen from there.
  Finding worst;
  int through = -1;
  bool waits_for_us = false;
  for (const int other : about.activity.waiting_for) {
    if (other == rank_) waits_for_us = true;
    if (other == rank_ || visited[other]) continue;
    Finding next = Find(other, about.activity, now, visited);
    const std::vector<int>& unheard = about.activity.unheard;
    if (next.weight < Weight::kSilent &&
        std::find(unheard.begin(), unheard.end(), other) != unheard.end()) {
      next = {.weight = Weight::kSilent,
              .rank = other,
              .text = "is unreachable from there, though not from here"};
    }
    if (next.weight > worst.weight) {
      worst = std::move(next);
      through = other;
    }
  }
  const bool elsewhere = finding.weight == Weight::kElsewhere;
  if (worst.weight > Weight::kWaits) {
    worst.text =
        absl::StrCat(elsewhere ? finding.text : "", elsewhere ? ", and " : "",
                     "waits for ", Name(through), ", which ", worst.text);
    return worst;
  }
  if (elsewhere && !waits_for_us) return finding;
  return {.weight = elsewhere ? Weight::kElsewhere : Weight::kWaits,
          .rank = peer,
          .text = absl::StrCat(
              elsewhere ? finding.text : "is alive and in the same operation",
              ", and waits for ",
              waits_for_us ? std::string("this rank")
                           : Name(about.activity.waiting_for.front()))};
}

PeerWatch::Verdict PeerWatch::Explain(absl::Span<const int> missing,
                                      const Activity& own, Time now) const {
  Finding worst;
  int through = missing.front();
  for (const int peer : missing) {
    std::vector<bool> visited(peers_.size(), false);
    Finding finding = Find(peer, own, now, visited);
    if (finding.weight > worst.weight) {
      worst = std::move(finding);
      through = peer;
    }
  }
  std::string text = absl::StrCat(Name(through), ", which ", worst.text);
  std::vector<int> others;
  for (const int peer : missing) {
    if (peer != through) others.push_back(peer);
  }
  if (!others.empty()) {
    absl::StrAppend(&text, "; nor from rank ", absl::StrJoin(others, ", "));
  }
  if (CutOff(now)) {
    worst.rank = rank_;
    absl::StrAppend(&text, "; ", CutOffText());
  }
  if (WasAway(now)) {
    absl::StrAppend(&text, "; this rank itself did not run for ",
                    SecondsText(away_));
  }
  return {worst.rank, worst.weight > Weight::kSlow, std::move(text)};
}

bool PeerWatch::WasAway(Time now) const {
  return away_until_ != Time::min() &&
         absl::FromChrono(now - away_until_) < kAwayMatters;
}

std::string PeerWatch::ExplainClosed(int peer) const {
  switch (Probed(peer)) {
    case Result::kRefused:
      return "its process has ended: nobody listens at its address";
    case Result::kNoAnswer:
      return "its host does not answer";
    case Result::kConnected:
      return "its address still accepts connections";
    case Result::kPending:
    case Result::kUnknown:
      return "";
  }
  return "";
}

}  // namespace ringfleet::cluster
