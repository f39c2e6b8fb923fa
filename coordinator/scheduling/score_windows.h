// SPDX-License-Identifier: Apache-2.0
// A text longer than the context is scored in windows of the context's length.
// Each window starts with the last id of the window before it. Every id but the
// text's first therefore gets exactly one probability, conditioned on its own
// window.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_SCORE_WINDOWS_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_SCORE_WINDOWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Ids [begin, end) of the text.
struct ScoreWindow {
  size_t begin = 0;
  size_t end = 0;
};

// Returns the window that starts at `begin`. The next window starts at end - 1,
// unless this one reaches the end of the text. Requires begin < ids and
// context > 0.
//
// Errors: INVALID_ARGUMENT: the options ask for hidden states or MTP, and the
// ids do not fit one window. Or the ids need several windows of one position,
// which never advance.
absl::StatusOr<ScoreWindow> NextScoreWindow(size_t ids, size_t begin,
                                            size_t context,
                                            const v1::ScoreOptions& options);

// Appends the next part of a text to `total`. Probabilities and MTP are
// appended. Top ids and hidden states, which belong to the last id, are
// replaced if the part has them. Sums of the comparison with the float32 copy
// are added. Workers sum over the positions that yield a probability, so a
// position where two windows meet counts once.
void AppendScore(const v1::ScoreResult& part, v1::ScoreResult* total);

// Splits the result of a text of `ids` into parts, which the receiver merges in
// order. Each part has the ids and probabilities of kScorePartIds positions.
// The last part has everything else too. Every client takes messages of this
// size.
inline constexpr size_t kScorePartIds = size_t{1} << 16;
std::vector<v1::ScoreEvent::Result> SplitScore(absl::Span<const uint32_t> ids,
                                               v1::ScoreResult score);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_SCORE_WINDOWS_H_
