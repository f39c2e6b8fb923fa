// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_LOGIT_RULES_H_
#define RINGFLEET_WORKER_EXECUTION_LOGIT_RULES_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/model/shard_plan.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// The changes that a sequence's sampling makes to its logits before a draw. See
// SamplingParams for the rules and their order. Every rank keeps the rules of
// its data group's sequences and applies them to its own part of the
// vocabulary. Not thread-safe. Rules that change nothing allocate nothing.
class LogitRules {
 public:
  // Changes nothing.
  LogitRules() = default;

  // The rules of an admitted sequence. Its committed ids count as drawn.
  explicit LogitRules(const v1::Admission& admission);

  // Checks the fields of `admission` that the rules read.
  // Errors: INVALID_ARGUMENT: a field out of range. The message names the field
  // and the value.
  static absl::Status Check(const v1::Admission& admission,
                            uint32_t vocab_size);

  // Counts a drawn id.
  void Add(uint32_t id);

  // Returns whether Apply may change a logit.
  bool active() const;

  // Changes `logits`, those of the ids in `vocab`, f32. A logit of an id that
  // must not be drawn becomes minus infinity.
  void Apply(cluster::Range vocab, absl::Span<float> logits) const;

 private:
  struct Uses {
    bool in_prompt = false;
    uint32_t drawn = 0;
  };

  bool penalises() const;

  v1::SamplingParams sampling_;
  std::vector<uint32_t> stop_ids_;
  uint32_t drawn_n_ = 0;
  std::vector<uint32_t> drawn_;               // With bad words only.
  absl::flat_hash_map<uint32_t, Uses> uses_;  // With penalties only.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_LOGIT_RULES_H_
