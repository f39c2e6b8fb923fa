// SPDX-License-Identifier: Apache-2.0
#include "worker/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cluster/status_macros.h"
#include "worker/gather.h"

namespace ringfleet::worker {
namespace {

using kernels::Candidate;
using kernels::LogSumExp;

bool NeedsCandidates(const kernels::SamplingFilter& filter) {
  return !filter.greedy() && filter.filters();
}

absl::Span<const float> UsableLogits(const DrawRequest& request,
                                     absl::Span<const float> logits,
                                     cluster::Range vocab) {
  if (request.usable_vocab == 0) return logits;
  const int64_t usable =
      static_cast<int64_t>(request.usable_vocab) - vocab.begin;
  return logits.subspan(0,
                        static_cast<size_t>(std::clamp<int64_t>(
                            usable, 0, static_cast<int64_t>(logits.size()))));
}

// Draws one row whose filters need candidates. A merged list is only certain
// down to the last candidate that the shortest contribution reached.
absl::StatusOr<Candidate> DrawFiltered(const DrawRequest& request,
                                       absl::Span<const float> logits,
                                       cluster::Range vocab, int vocab_size,
                                       double log_z,
                                       TimedCommunicator& communicator) {
  // A nucleus of 0.95 rarely holds more than some hundred tokens.
  constexpr size_t kFirstCandidates = 256;
  const absl::Span<const float> usable = UsableLogits(request, logits, vocab);
  const size_t total = request.usable_vocab == 0
                           ? vocab_size
                           : std::min<size_t>(request.usable_vocab, vocab_size);
  size_t count = std::max<size_t>(kFirstCandidates, request.filter.top_k);
  while (true) {
    count = std::min(count, total);
    RF_ASSIGN_OR_RETURN(
        const std::vector<Candidate> sorted,
        GatherTopCandidates(usable, vocab, static_cast<int>(total), count,
                            communicator));
    // A NaN ranks last, so a NaN in front means that there is nothing else.
    if (sorted.empty() || std::isnan(sorted[0].logit)) {
      return absl::DataLossError("all logits of a token are NaN");
    }
    const size_t survivors = kernels::CountSurvivors(
        sorted, request.filter, log_z, /*complete=*/count == total);
    if (survivors > 0) {
      return kernels::Draw(absl::MakeConstSpan(sorted).subspan(0, survivors),
                           request.filter, request.key);
    }
    count *= 8;
  }
}

}  // namespace

absl::StatusOr<std::vector<Candidate>> GatherTopCandidates(
    absl::Span<const float> logits, cluster::Range vocab, int vocab_size,
    size_t count, TimedCommunicator& communicator) {
  // The first `count` of all ranks are among the first `count` of each. Ranks
  // with fewer fill up with candidates that precede nothing.
  count = std::min<size_t>(count, vocab_size);
  std::vector<Candidate> own =
      kernels::TopCandidates(logits, vocab.begin, count);
  own.resize(count, {.id = std::numeric_limits<uint32_t>::max(),
                     .logit = -std::numeric_limits<float>::infinity()});
  std::vector<Candidate> all;
  RF_RETURN_IF_ERROR(
      GatherRecords(communicator, absl::MakeConstSpan(own), &all));
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const Candidate& candidate) {
                             return candidate.id ==
                                    std::numeric_limits<uint32_t>::max();
                           }),
            all.end());
  std::sort(all.begin(), all.end(), kernels::Precedes);
  if (all.size() > count) all.resize(count);
  return all;
}

TokenDrawer::RowSummary TokenDrawer::Summarize(const DrawRequest& request,
                                               absl::Span<const float> logits,
                                               cluster::Range vocab) {
  RowSummary summary;
  summary.all = kernels::ReduceLogSumExp(logits);
  const absl::Span<const float> usable = UsableLogits(request, logits, vocab);
  if (NeedsCandidates(request.filter)) {
    summary.tempered =
        kernels::ReduceLogSumExp(usable, request.filter.temperature);
  } else if (!usable.empty()) {
    summary.best = kernels::DrawFromShard(usable, vocab.begin, request.filter,
                                          request.key);
    summary.valid = std::isnan(summary.best.logit) ? 0 : 1;
  }
  return summary;
}

absl::StatusOr<absl::Span<const DrawnToken>> TokenDrawer::Draw(
    absl::Span<const DrawRequest> requests, const float* logits,
    cluster::Range vocab, int vocab_size) {
  const auto row_logits = [&](size_t row) {
    return absl::MakeConstSpan(logits + row * vocab.size(), vocab.size());
  };
  own_.resize(requests.size());
  pool_.ParallelFor(
      requests.size(), /*grain=*/1, [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
          own_[row] = Summarize(requests[row], row_logits(row), vocab);
        }
      });
  RF_RETURN_IF_ERROR(
      GatherRecords(communicator_, absl::MakeConstSpan(own_), &all_));
  drawn_.clear();
  for (size_t row = 0; row < requests.size(); ++row) {
    const DrawRequest& request = requests[row];
    LogSumExp all_logits;
    LogSumExp tempered;
    winners_.clear();
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const RowSummary& summary = all_[rank * requests.size() + row];
      all_logits = kernels::Merge(all_logits, summary.all);
      tempered = kernels::Merge(tempered, summary.tempered);
      if (summary.valid != 0) winners_.push_back(summary.best);
    }
    Candidate winner;
    if (NeedsCandidates(request.filter)) {
      RF_ASSIGN_OR_RETURN(
          winner, DrawFiltered(request, row_logits(row), vocab, vocab_size,
                               tempered.Value(), communicator_));
    } else if (winners_.empty()) {
      return absl::DataLossError("all logits of a token are NaN");
    } else {
      std::sort(winners_.begin(), winners_.end(), kernels::Precedes);
      winner = kernels::Draw(winners_, request.filter, request.key);
    }
    drawn_.push_back(
        {.id = winner.id,
         .logprob = static_cast<float>(winner.logit - all_logits.Value())});
  }
  return absl::MakeConstSpan(drawn_);
}

}  // namespace ringfleet::worker
