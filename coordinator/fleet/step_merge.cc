// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/step_merge.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::coordinator {
namespace {

using Decisions = std::map<uint32_t, const v1::SlotResult*>;

Decisions DecisionsOf(const v1::StepResult& result) {
  Decisions decisions;
  for (const v1::SlotResult& slot : result.slots()) {
    if (!slot.tokens().empty() || slot.has_error() ||
        slot.finish() != v1::FINISH_REASON_UNSPECIFIED) {
      decisions[slot.slot()] = &slot;
    }
  }
  return decisions;
}

std::string Describe(const Decisions& decisions, uint32_t slot) {
  const auto it = decisions.find(slot);
  if (it == decisions.end()) return "nothing";
  const v1::SlotResult& result = *it->second;
  std::string text =
      result.tokens().empty()
          ? std::string("no token")
          : absl::StrCat(result.tokens_size() == 1 ? "token " : "tokens ",
                         absl::StrJoin(result.tokens(), ", "));
  if (result.finish() != v1::FINISH_REASON_UNSPECIFIED) {
    absl::StrAppend(&text, " and the end ",
                    v1::FinishReason_Name(result.finish()));
  }
  if (result.has_error()) {
    absl::StrAppend(&text, " and the error ", result.error().message());
  }
  return text;
}

bool Same(const v1::SlotResult& a, const v1::SlotResult& b) {
  const auto equal = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  return a.finish() == b.finish() && a.error().code() == b.error().code() &&
         a.accepted() == b.accepted() && equal(a.tokens(), b.tokens()) &&
         equal(a.drafts(), b.drafts());
}

// That result `rank` decided what result `first` did.
absl::Status CompareDecisions(absl::Span<const v1::StepResult> results,
                              absl::Span<const int> ranks, size_t first,
                              size_t rank) {
  const Decisions want = DecisionsOf(results[first]);
  const Decisions got = DecisionsOf(results[rank]);
  Decisions either = want;
  either.insert(got.begin(), got.end());
  for (const auto& [slot, unused] : either) {
    const auto a = want.find(slot);
    const auto b = got.find(slot);
    if (a != want.end() && b != got.end() && Same(*a->second, *b->second)) {
      continue;
    }
    return absl::InternalError(
        absl::StrCat("step ", results[first].step(), ", slot ", slot,
                     ": worker ", ranks[rank], " has ", Describe(got, slot),
                     ", worker ", ranks[first], " has ", Describe(want, slot)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::StepResult> MergeStepResults(
    absl::Span<const v1::StepResult> results, absl::Span<const int> ranks,
    size_t group_size) {
  RF_CHECK(ranks.size() == results.size());
  v1::StepResult merged = results[0];
  std::map<uint32_t, size_t> reporters;  // First rank of each slot.
  merged.clear_slots();
  uint64_t bytes_read = 0, bytes_sent = 0;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const v1::StepResult& result = results[rank];
    if (result.epoch() != merged.epoch() || result.step() != merged.step()) {
      return absl::InternalError(
          absl::StrCat("worker ", ranks[rank], " reports step ", result.step(),
                       " of epoch ", result.epoch(), ", worker ", ranks[0],
                       " step ", merged.step(), " of epoch ", merged.epoch()));
    }
    bytes_read += result.bytes_read();
    bytes_sent += result.bytes_sent();
    const size_t first = rank - rank % group_size;
    if (rank != first) {
      RF_RETURN_IF_ERROR(CompareDecisions(results, ranks, first, rank));
      continue;
    }
    for (const v1::SlotResult& slot : result.slots()) {
      const auto [known, fresh] = reporters.emplace(slot.slot(), rank);
      if (!fresh) {
        return absl::InternalError(
            absl::StrCat("step ", result.step(), ", slot ", slot.slot(),
                         ": worker ", ranks[rank], " reports it, which worker ",
                         ranks[known->second], " has"));
      }
      *merged.add_slots() = slot;
    }
  }
  merged.set_bytes_read(bytes_read);
  merged.set_bytes_sent(bytes_sent);
  return merged;
}

}  // namespace ringfleet::coordinator
