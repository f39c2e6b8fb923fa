// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "worker/fused/gather.h"

namespace ringfleet::worker {
namespace {

using kernels::Candidate;
using kernels::LogSumExp;

bool NeedsCandidates(const kernels::SamplingFilter& filter) {
  return !filter.greedy() && filter.filters();
}

// Wins a row without a usable number.
constexpr Candidate kNoWinner = {
    .id = 0, .logit = std::numeric_limits<float>::quiet_NaN()};

// Returns the part of `logits`, those of `ids`, that may be drawn.
absl::Span<const float> UsableLogits(const DrawRequest& request,
                                     absl::Span<const float> logits,
                                     cluster::Range ids) {
  if (request.usable_vocab == 0) return logits;
  const int64_t usable = static_cast<int64_t>(request.usable_vocab) - ids.begin;
  return logits.subspan(0,
                        static_cast<size_t>(std::clamp<int64_t>(
                            usable, 0, static_cast<int64_t>(logits.size()))));
}

size_t UsableVocab(const DrawRequest& request, int vocab_size) {
  const size_t all = static_cast<size_t>(vocab_size);
  return request.usable_vocab == 0
             ? all
             : std::min<size_t>(request.usable_vocab, all);
}

}  // namespace

absl::StatusOr<std::vector<std::vector<Candidate>>> GatherTopCandidates(
    absl::Span<const absl::Span<const float>> rows, cluster::Range vocab,
    size_t count, kernels::ThreadPool& pool, TimedCommunicator& communicator) {
  // The first `count` of all ranks together are among the first `count` of each
  // rank. A rank with fewer candidates adds some that precede nothing.
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<Candidate> own(
      rows.size() * count,
      {.id = kNone, .logit = -std::numeric_limits<float>::infinity()});
  pool.ParallelFor(rows.size(), /*grain=*/1, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::vector<Candidate> top =
          kernels::TopCandidates(rows[row], vocab.begin, count);
      std::copy(top.begin(), top.end(), own.begin() + row * count);
    }
  });
  std::vector<Candidate> all;
  RF_RETURN_IF_ERROR(
      GatherRecords(communicator, absl::MakeConstSpan(own), &all));
  std::vector<std::vector<Candidate>> tops(rows.size());
  pool.ParallelFor(rows.size(), /*grain=*/1, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      std::vector<Candidate>& top = tops[row];
      for (size_t rank = 0; rank * own.size() < all.size(); ++rank) {
        const Candidate* from = all.data() + rank * own.size() + row * count;
        std::copy_if(from, from + count, std::back_inserter(top),
                     [](const Candidate& c) { return c.id != kNone; });
      }
      std::sort(top.begin(), top.end(), kernels::Precedes);
      if (top.size() > count) top.resize(count);
    }
  });
  return tops;
}

TokenDrawer::RowSummary TokenDrawer::Summarize(
    const DrawRequest& request, absl::Span<const float> logits,
    absl::Span<const float> drawn_from, cluster::Range ids) {
  RowSummary summary;
  summary.all = kernels::ReduceLogSumExp(logits);
  const absl::Span<const float> usable = UsableLogits(request, drawn_from, ids);
  if (NeedsCandidates(request.filter)) {
    summary.tempered =
        kernels::ReduceLogSumExp(usable, request.filter.temperature);
  } else if (!usable.empty()) {
    summary.best =
        kernels::DrawFromShard(usable, ids.begin, request.filter, request.key);
    summary.valid = std::isnan(summary.best.logit) ? 0 : 1;
  }
  return summary;
}

void TokenDrawer::Merge(const DrawRequest& request, const RowSummary& other,
                        RowSummary* summary) {
  summary->all = kernels::Merge(summary->all, other.all);
  summary->tempered = kernels::Merge(summary->tempered, other.tempered);
  if (other.valid == 0) return;
  Candidate both[] = {summary->best, other.best};
  if (summary->valid != 0) {
    if (kernels::Precedes(both[1], both[0])) std::swap(both[0], both[1]);
    summary->best = kernels::Draw(both, request.filter, request.key);
  } else {
    summary->best = other.best;
    summary->valid = 1;
  }
}

absl::StatusOr<absl::Span<const DrawnToken>> TokenDrawer::Draw(
    absl::Span<const DrawRequest> requests, const float* logits,
    cluster::Range vocab, int vocab_size) {
  // Rows are cut into parts of 10 to 50 us, so that several threads work where
  // there are few rows. Ranks may have different numbers of parts.
  constexpr size_t kPart = 16384;
  const size_t size = vocab.size();
  const size_t num_parts = (size + kPart - 1) / kPart;
  ApplyRules(requests, logits, vocab);
  parts_.resize(requests.size() * num_parts);
  pool_.ParallelFor(parts_.size(), /*grain=*/1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t row = i / num_parts;
      const size_t first = i % num_parts * kPart;
      const size_t last = std::min(first + kPart, size);
      parts_[i] = Summarize(
          requests[row],
          absl::MakeConstSpan(logits + row * size + first, last - first),
          absl::MakeConstSpan(drawn_from_[row] + first, last - first),
          {.begin = vocab.begin + static_cast<int>(first),
           .end = vocab.begin + static_cast<int>(last)});
    }
  });
  own_.assign(requests.size(), {});
  for (size_t i = 0; i < parts_.size(); ++i) {
    const size_t row = i / num_parts;
    Merge(requests[row], parts_[i], &own_[row]);
  }
  RF_RETURN_IF_ERROR(
      GatherRecords(communicator_, absl::MakeConstSpan(own_), &all_));
  // The first rank's summaries become those of all ranks.
  for (size_t i = requests.size(); i < all_.size(); ++i) {
    const size_t row = i % requests.size();
    Merge(requests[row], all_[i], &all_[row]);
  }
  winners_.resize(requests.size());
  for (size_t row = 0; row < requests.size(); ++row) {
    if (NeedsCandidates(requests[row].filter)) continue;
    winners_[row] = all_[row].valid == 0 ? kNoWinner : all_[row].best;
  }
  RF_RETURN_IF_ERROR(DrawFiltered(requests, vocab, vocab_size));
  drawn_.assign(requests.size(), {});
  for (const size_t row : ruled_) {
    drawn_[row].forbidden = std::isinf(winners_[row].logit);
  }
  RF_RETURN_IF_ERROR(RestoreLogits(logits, vocab));
  RF_RETURN_IF_ERROR(FindTop(requests, logits, vocab, vocab_size));
  for (size_t row = 0; row < requests.size(); ++row) {
    const Candidate& winner = winners_[row];
    if (winner.id >= static_cast<uint32_t>(vocab_size)) {  // As a rank sent it.
      return absl::DataLossError(absl::StrCat(
          "token id ", winner.id, " was drawn, want below ", vocab_size));
    }
    DrawnToken& token = drawn_[row];
    if (token.forbidden) continue;
    token.logprob = static_cast<float>(winner.logit - all_[row].all.Value());
    if (std::isnan(token.logprob)) {
      token = {.nan = true};
      continue;
    }
    token.id = winner.id;
    token.top = top_[row];
  }
  return absl::MakeConstSpan(drawn_);
}

void TokenDrawer::ApplyRules(absl::Span<const DrawRequest> requests,
                             const float* logits, cluster::Range vocab) {
  const auto size = static_cast<size_t>(vocab.size());
  ruled_.clear();
  drawn_from_.resize(requests.size());
  for (size_t row = 0; row < requests.size(); ++row) {
    drawn_from_[row] = logits + row * size;
    const LogitRules* const rules = requests[row].rules;
    if (rules != nullptr && rules->active()) ruled_.push_back(row);
  }
  changed_.resize(std::max(changed_.size(), ruled_.size() * size));
  pool_.ParallelFor(ruled_.size(), /*grain=*/1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float* const row = changed_.data() + i * size;
      std::copy_n(drawn_from_[ruled_[i]], size, row);
      requests[ruled_[i]].rules->Apply(vocab, absl::MakeSpan(row, size));
      drawn_from_[ruled_[i]] = row;
    }
  });
}

absl::Status TokenDrawer::RestoreLogits(const float* logits,
                                        cluster::Range vocab) {
  if (ruled_.empty()) return absl::OkStatus();
  // The rank that has the id tells the logit, the others NaN.
  std::vector<float> own;
  for (const size_t row : ruled_) {
    const int64_t index = int64_t{winners_[row].id} - vocab.begin;
    own.push_back(index < 0 || index >= vocab.size()
                      ? std::numeric_limits<float>::quiet_NaN()
                      : logits[row * vocab.size() + index]);
  }
  std::vector<float> all;
  RF_RETURN_IF_ERROR(
      GatherRecords(communicator_, absl::MakeConstSpan(own), &all));
  for (size_t i = 0; i < ruled_.size(); ++i) {
    float& logit = winners_[ruled_[i]].logit;
    if (std::isnan(logit)) continue;
    for (size_t at = i; at < all.size(); at += ruled_.size()) {
      if (!std::isnan(all[at])) logit = all[at];
    }
  }
  return absl::OkStatus();
}

absl::Status TokenDrawer::FindTop(absl::Span<const DrawRequest> requests,
                                  const float* logits, cluster::Range vocab,
                                  int vocab_size) {
  top_.resize(std::max(top_.size(), requests.size()));
  std::vector<size_t> asking;
  std::vector<absl::Span<const float>> rows;
  uint32_t most = 0;
  for (size_t row = 0; row < requests.size(); ++row) {
    top_[row].clear();
    if (requests[row].top == 0) continue;
    asking.push_back(row);
    rows.push_back(
        absl::MakeConstSpan(logits + row * vocab.size(), vocab.size()));
    most = std::max(most, requests[row].top);
  }
  if (asking.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(
      const std::vector<std::vector<Candidate>> tops,
      GatherTopCandidates(rows, vocab, std::min<size_t>(most, vocab_size),
                          pool_, communicator_));
  for (size_t i = 0; i < asking.size(); ++i) {
    const size_t row = asking[i];
    const size_t count = std::min<size_t>(requests[row].top, tops[i].size());
    for (size_t j = 0; j < count; ++j) {
      top_[row].push_back({.id = tops[i][j].id,
                           .logprob = static_cast<float>(
                               tops[i][j].logit - all_[row].all.Value())});
    }
  }
  return absl::OkStatus();
}

absl::Status TokenDrawer::DrawFiltered(absl::Span<const DrawRequest> requests,
                                       cluster::Range vocab, int vocab_size) {
  // A nucleus of 0.95 rarely holds more than some hundred tokens.
  constexpr size_t kFirstCandidates = 256;
  std::vector<size_t> undecided;
  size_t count = kFirstCandidates;
  for (size_t row = 0; row < requests.size(); ++row) {
    if (!NeedsCandidates(requests[row].filter)) continue;
    undecided.push_back(row);
    count = std::max<size_t>(count, requests[row].filter.top_k);
  }
  // The merged list is certain down to the last candidate of the shortest list
  // of a rank. If the filters need more, ask for longer lists.
  for (; !undecided.empty(); count *= 8) {
    count = std::min(count, static_cast<size_t>(vocab_size));
    std::vector<absl::Span<const float>> usable;
    for (const size_t row : undecided) {
      usable.push_back(UsableLogits(
          requests[row], absl::MakeConstSpan(drawn_from_[row], vocab.size()),
          vocab));
    }
    RF_ASSIGN_OR_RETURN(
        const std::vector<std::vector<Candidate>> tops,
        GatherTopCandidates(usable, vocab, count, pool_, communicator_));
    std::vector<size_t> next;
    for (size_t i = 0; i < undecided.size(); ++i) {
      const size_t row = undecided[i];
      const DrawRequest& request = requests[row];
      // A NaN ranks last, so a NaN in front means that all are NaN.
      if (tops[i].empty() || std::isnan(tops[i][0].logit)) {
        winners_[row] = kNoWinner;
        continue;
      }
      const size_t survivors = kernels::CountSurvivors(
          tops[i], request.filter, all_[row].tempered.Value(),
          /*complete=*/count >= UsableVocab(request, vocab_size));
      if (survivors == 0) {
        next.push_back(row);
        continue;
      }
      winners_[row] =
          kernels::Draw(absl::MakeConstSpan(tops[i]).subspan(0, survivors),
                        request.filter, request.key);
    }
    undecided = std::move(next);
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
