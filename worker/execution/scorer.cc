// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cluster/process/status_macros.h"
#include "kernels/sampling.h"
#include "worker/execution/sampler.h"
#include "worker/fused/gather.h"

namespace ringfleet::worker {
namespace {

using kernels::Candidate;
using kernels::LogSumExp;

// Rows whose logits are in memory at a time. 32 rows of R1's whole vocabulary
// take 16.5 MB.
constexpr size_t kTileRows = 32;

// Summary of one row's distribution, on one rank or merged over ranks.
struct RowScore {
  LogSumExp all;
  Candidate best{.id = std::numeric_limits<uint32_t>::max(),
                 .logit = -std::numeric_limits<float>::infinity()};
  float target_logit = -std::numeric_limits<float>::infinity();
};

RowScore SummarizeRow(const float* logits, cluster::Range vocab,
                      uint32_t target) {
  const absl::Span<const float> row(logits, vocab.size());
  RowScore score;
  score.all = kernels::ReduceLogSumExp(row);
  const std::vector<Candidate> best =
      kernels::TopCandidates(row, vocab.begin, 1);
  if (!best.empty()) score.best = best[0];
  if (target >= static_cast<uint32_t>(vocab.begin) &&
      target < static_cast<uint32_t>(vocab.end)) {
    score.target_logit = row[target - vocab.begin];
  }
  return score;
}

absl::StatusOr<std::vector<RowScore>> MergeOverRanks(
    absl::Span<const RowScore> own, TimedCommunicator& communicator) {
  std::vector<RowScore> all;
  RF_RETURN_IF_ERROR(GatherRecords(communicator, own, &all));
  std::vector<RowScore> merged(all.begin(), all.begin() + own.size());
  for (int rank = 1; rank < communicator.size(); ++rank) {
    for (size_t row = 0; row < own.size(); ++row) {
      const RowScore& other = all[rank * own.size() + row];
      merged[row].all = kernels::Merge(merged[row].all, other.all);
      // A NaN must reach the score. Ranks without the target have -infinity.
      merged[row].target_logit =
          std::isnan(other.target_logit)
              ? other.target_logit
              : std::max(merged[row].target_logit, other.target_logit);
      if (kernels::Precedes(other.best, merged[row].best)) {
        merged[row].best = other.best;
      }
    }
  }
  return merged;
}

// Returns the id behind row `row` of the span. At the prompt's end, returns a
// number past the vocabulary.
uint32_t NextId(const ScoredSpan& scored, size_t row) {
  const size_t next = scored.span.first_position + row + 1;
  return next < scored.prompt.size() ? scored.prompt[next]
                                     : std::numeric_limits<uint32_t>::max();
}

// Returns how many rows of the span have a successor in the prompt.
size_t RowsWithSuccessor(const ScoredSpan& scored) {
  return std::min<size_t>(
      scored.span.rows, scored.prompt.size() - 1 - scored.span.first_position);
}

// Scores rows [first, first + rows) of `hidden` against `targets`.
absl::StatusOr<std::vector<RowScore>> ScoreRows(
    Model& model, const float* hidden, size_t rows,
    absl::FunctionRef<uint32_t(size_t)> target, std::vector<float>& logits) {
  const cluster::Range vocab = model.plan().vocab;
  float* values = Grow(logits, rows * vocab.size());
  model.Logits(hidden, rows, values);
  std::vector<RowScore> own;
  for (size_t row = 0; row < rows; ++row) {
    own.push_back(
        SummarizeRow(values + row * vocab.size(), vocab, target(row)));
  }
  return MergeOverRanks(own, model.communicator());
}

}  // namespace

absl::Status Scorer::Score(const ScoredSpan& scored, v1::ScoreResult* result) {
  RF_RETURN_IF_ERROR(ScoreNextTokens(scored, result));
  if (scored.options->reference()) RF_RETURN_IF_ERROR(Compare(scored, result));
  if (scored.options->mtp()) RF_RETURN_IF_ERROR(ScoreMtp(scored, result));
  return absl::OkStatus();
}

absl::Status Scorer::ScoreNextTokens(const ScoredSpan& scored,
                                     v1::ScoreResult* result) {
  const size_t hidden_size = model_.spec().hidden_size;
  const cluster::Range vocab = model_.plan().vocab;
  const size_t with_successor = RowsWithSuccessor(scored);
  for (size_t first = 0; first < scored.span.rows; first += kTileRows) {
    const size_t rows = std::min(kTileRows, scored.span.rows - first);
    RF_ASSIGN_OR_RETURN(
        const std::vector<RowScore> scores,
        ScoreRows(
            model_, scored.hidden + first * hidden_size, rows,
            [&](size_t row) { return NextId(scored, first + row); }, logits_));
    const size_t tile_successors =
        std::min(rows, with_successor - std::min(with_successor, first));
    if (scored.options->prompt_top() > 0 && tile_successors > 0) {
      std::vector<absl::Span<const float>> tile;
      for (size_t row = 0; row < tile_successors; ++row) {
        tile.emplace_back(logits_.data() + row * vocab.size(), vocab.size());
      }
      RF_ASSIGN_OR_RETURN(
          const std::vector<std::vector<Candidate>> tops,
          GatherTopCandidates(tile, vocab,
                              std::min<size_t>(scored.options->prompt_top(),
                                               model_.spec().vocab_size),
                              model_.pool(), model_.communicator()));
      for (size_t row = 0; row < tile_successors; ++row) {
        v1::TopLogprobs* top = result->add_prompt_top();
        for (const Candidate& candidate : tops[row]) {
          top->add_ids(candidate.id);
          top->add_logprobs(
              static_cast<float>(candidate.logit - scores[row].all.Value()));
        }
      }
    }
    for (size_t row = 0; row < rows; ++row) {
      const double log_z = scores[row].all.Value();
      if (first + row < with_successor) {
        result->add_logprobs(
            static_cast<float>(scores[row].target_logit - log_z));
        continue;
      }
      const absl::Span<const float> logits(logits_.data() + row * vocab.size(),
                                           vocab.size());
      RF_ASSIGN_OR_RETURN(
          const std::vector<std::vector<Candidate>> top,
          GatherTopCandidates(
              {logits}, vocab,
              std::min<size_t>(scored.options->top(), model_.spec().vocab_size),
              model_.pool(), model_.communicator()));
      for (const Candidate& candidate : top[0]) {
        result->add_top_ids(candidate.id);
        result->add_top_logprobs(static_cast<float>(candidate.logit - log_z));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Scorer::Compare(const ScoredSpan& scored,
                             v1::ScoreResult* result) {
  if (reference_ == nullptr || scored.reference_hidden == nullptr) {
    return absl::InvalidArgumentError(
        "score: no float32 reference is loaded in this fleet");
  }
  const size_t hidden_size = model_.spec().hidden_size;
  const size_t vocab = model_.plan().vocab.size();
  const size_t with_successor = RowsWithSuccessor(scored);
  const auto no_target = [](size_t) {
    return std::numeric_limits<uint32_t>::max();
  };
  for (size_t first = 0; first < with_successor; first += kTileRows) {
    const size_t rows = std::min(kTileRows, with_successor - first);
    RF_ASSIGN_OR_RETURN(const std::vector<RowScore> model_scores,
                        ScoreRows(model_, scored.hidden + first * hidden_size,
                                  rows, no_target, logits_));
    RF_ASSIGN_OR_RETURN(
        const std::vector<RowScore> reference_scores,
        ScoreRows(*reference_, scored.reference_hidden + first * hidden_size,
                  rows, no_target, reference_logits_));
    // KL(p || q) = sum p (log p - log q), p of the reference; each rank sums
    // over its rows of the vocabulary.
    double own_kl = 0;
    for (size_t row = 0; row < rows; ++row) {
      const double model_log_z = model_scores[row].all.Value();
      const double reference_log_z = reference_scores[row].all.Value();
      for (size_t id = 0; id < vocab; ++id) {
        const double log_p =
            reference_logits_[row * vocab + id] - reference_log_z;
        const double log_q = logits_[row * vocab + id] - model_log_z;
        own_kl += std::exp(log_p) * (log_p - log_q);
      }
      if (model_scores[row].best.id == reference_scores[row].best.id) {
        result->set_top1_agreements(result->top1_agreements() + 1);
      }
    }
    std::vector<double> kl;
    RF_RETURN_IF_ERROR(GatherRecords(model_.communicator(),
                                     absl::MakeConstSpan(&own_kl, 1), &kl));
    for (double part : kl) result->set_kl_sum(result->kl_sum() + part);
    result->set_compared(result->compared() + static_cast<uint32_t>(rows));
  }
  return absl::OkStatus();
}

absl::Status Scorer::ScoreMtp(const ScoredSpan& scored,
                              v1::ScoreResult* result) {
  if (!model_.has_mtp()) {
    return absl::InvalidArgumentError(
        "score: this model has no multi-token prediction layer");
  }
  const size_t rows = RowsWithSuccessor(scored);
  if (rows == 0) return absl::OkStatus();
  const size_t hidden_size = model_.spec().hidden_size;
  Batch next;
  for (size_t row = 0; row < rows; ++row) {
    next.ids.push_back(NextId(scored, row));
  }
  next.spans = {{.slot = scored.span.slot,
                 .first_row = 0,
                 .rows = rows,
                 .first_position = scored.span.first_position}};
  float* mtp_hidden = Grow(mtp_hidden_, rows * hidden_size);
  RF_RETURN_IF_ERROR(model_.ForwardMtp(next, scored.hidden, mtp_hidden));
  for (size_t first = 0; first < rows; first += kTileRows) {
    const size_t tile = std::min(kTileRows, rows - first);
    RF_ASSIGN_OR_RETURN(
        const std::vector<RowScore> scores,
        ScoreRows(
            model_, mtp_hidden + first * hidden_size, tile,
            [](size_t) { return std::numeric_limits<uint32_t>::max(); },
            logits_));
    for (const RowScore& score : scores) {
      result->add_mtp_top_ids(score.best.id);
      result->add_mtp_top_logprobs(
          static_cast<float>(score.best.logit - score.all.Value()));
    }
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
