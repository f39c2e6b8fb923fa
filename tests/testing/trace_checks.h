// SPDX-License-Identifier: Apache-2.0
// Checks that hold for every trace.
#ifndef RINGFLEET_TESTS_TESTING_TRACE_CHECKS_H_
#define RINGFLEET_TESTS_TESTING_TRACE_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/recording/trace_recorder.h"

namespace ringfleet::testing {

using TraceKind = cluster::TraceEvent::Kind;
using TraceThread = cluster::TraceEvent::Thread;

// Returns an error in one rank's events, or an empty text. It is an error if an
// event ends before it begins, if it ends before the previous event of its
// thread, or if two events overlap in part.
inline std::string TraceError(const std::vector<cluster::TraceEvent>& events) {
  for (const TraceThread thread :
       {TraceThread::kExecutor, TraceThread::kCommunication}) {
    std::vector<const cluster::TraceEvent*> whole;  // Those in no other event.
    int64_t last_end = 0;
    for (const cluster::TraceEvent& event : events) {
      if (event.thread != thread) continue;
      const std::string name = absl::StrCat(event.name, " of [", event.begin_ns,
                                            ", ", event.end_ns, "): ");
      if (event.begin_ns > event.end_ns) return name + "ends too early";
      if (event.end_ns < last_end) {
        return absl::StrCat(name, "the one before ends at ", last_end);
      }
      last_end = event.end_ns;
      // Inner events come before outer events, because they end first.
      while (!whole.empty() && whole.back()->begin_ns >= event.begin_ns) {
        whole.pop_back();
      }
      if (!whole.empty() && whole.back()->end_ns > event.begin_ns) {
        return absl::StrCat(name, "overlaps ", whole.back()->name, " of [",
                            whole.back()->begin_ns, ", ", whole.back()->end_ns,
                            ")");
      }
      whole.push_back(&event);
    }
  }
  return "";
}

inline std::vector<cluster::TraceEvent> EventsOf(
    const std::vector<cluster::TraceEvent>& events, TraceKind kind) {
  std::vector<cluster::TraceEvent> some;
  std::copy_if(events.begin(), events.end(), std::back_inserter(some),
               [kind](const auto& event) { return event.kind == kind; });
  return some;
}

inline int64_t TotalNs(const std::vector<cluster::TraceEvent>& events) {
  int64_t total = 0;
  for (const auto& event : events) total += event.end_ns - event.begin_ns;
  return total;
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_TRACE_CHECKS_H_
