// SPDX-License-Identifier: Apache-2.0
#include "coordinator/step_merge.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ringfleet::coordinator {
namespace {

using Decisions = std::map<uint32_t, const v1::SlotResult*>;

Decisions DecisionsOf(const v1::StepResult& result) {
  Decisions decisions;
  for (const v1::SlotResult& slot : result.slots()) {
    if (!slot.tokens().empty() ||
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
  return text;
}

bool Same(const v1::SlotResult& a, const v1::SlotResult& b) {
  return a.finish() == b.finish() &&
         std::equal(a.tokens().begin(), a.tokens().end(), b.tokens().begin(),
                    b.tokens().end());
}

}  // namespace

absl::StatusOr<v1::StepResult> MergeStepResults(
    absl::Span<const v1::StepResult> results) {
  const v1::StepResult& first = results[0];
  const Decisions want = DecisionsOf(first);
  for (size_t rank = 1; rank < results.size(); ++rank) {
    const v1::StepResult& other = results[rank];
    if (other.epoch() != first.epoch() || other.step() != first.step()) {
      return absl::InternalError(
          absl::StrCat("worker ", rank, " reports step ", other.step(),
                       " of epoch ", other.epoch(), ", worker 0 step ",
                       first.step(), " of epoch ", first.epoch()));
    }
    const Decisions got = DecisionsOf(other);
    Decisions either = want;
    either.insert(got.begin(), got.end());
    for (const auto& [slot, unused] : either) {
      const auto a = want.find(slot);
      const auto b = got.find(slot);
      if (a != want.end() && b != got.end() && Same(*a->second, *b->second)) {
        continue;
      }
      return absl::InternalError(absl::StrCat(
          "step ", first.step(), ", slot ", slot, ": worker ", rank, " has ",
          Describe(got, slot), ", worker 0 has ", Describe(want, slot)));
    }
  }
  v1::StepResult merged = first;
  uint64_t bytes_read = 0;
  for (const v1::StepResult& result : results)
    bytes_read += result.bytes_read();
  merged.set_bytes_read(bytes_read);
  return merged;
}

}  // namespace ringfleet::coordinator
