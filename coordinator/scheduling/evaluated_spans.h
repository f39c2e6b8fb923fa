// SPDX-License-Identifier: Apache-2.0
// How the cached rows of a sequence were evaluated. A row repeated in the same
// way has the same bits.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_EVALUATED_SPANS_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_EVALUATED_SPANS_H_

#include <cstdint>
#include <vector>

namespace ringfleet::coordinator {

// The span of a prompt that a position belongs to. Attention chooses its form
// by the span's first position and size.
struct SpanForm {
  uint32_t first = 0;
  uint32_t count = 0;  // 0: the position was evaluated as a decode.

  bool decode() const { return count == 0; }
  bool operator==(const SpanForm&) const = default;
};

// The forms of consecutive positions. Not thread-safe.
class EvaluatedSpans {
 public:
  struct Run {
    uint32_t positions = 0;
    SpanForm form;
    bool operator==(const Run&) const = default;
  };

  // Appends `positions` positions of one form.
  void Append(uint32_t positions, SpanForm form) {
    if (positions == 0) return;
    size_ += positions;
    if (!runs_.empty() && runs_.back().form == form) {
      runs_.back().positions += positions;
    } else {
      runs_.push_back({positions, form});
    }
  }

  // Appends positions [begin, end) of `other`, which has them.
  void Append(const EvaluatedSpans& other, uint32_t begin, uint32_t end) {
    // Callers mostly want the end.
    size_t i = other.runs_.size();
    uint32_t at = other.size_;
    while (i > 0 && at > begin) at -= other.runs_[--i].positions;
    for (; at < end; at += other.runs_[i++].positions) {
      const uint32_t last = at + other.runs_[i].positions;
      Append((last < end ? last : end) - (at > begin ? at : begin),
             other.runs_[i].form);
    }
  }

  // Returns the positions from `position` on that have its form, and the form.
  // Requires position < size().
  Run From(uint32_t position) const {
    uint32_t at = 0;
    for (const Run& run : runs_) {
      at += run.positions;
      if (position < at) return {at - position, run.form};
    }
    return {};
  }

  uint32_t size() const { return size_; }
  void Clear() {
    runs_.clear();
    size_ = 0;
  }
  bool operator==(const EvaluatedSpans&) const = default;

 private:
  std::vector<Run> runs_;
  uint32_t size_ = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_EVALUATED_SPANS_H_
