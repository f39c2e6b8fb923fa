// SPDX-License-Identifier: Apache-2.0
#include "coordinator/metrics/histogram.h"

#include <algorithm>
#include <numeric>

namespace ringfleet::coordinator {

v1::Histogram MakeHistogram(absl::Span<const double> bounds) {
  v1::Histogram histogram;
  histogram.mutable_bounds()->Assign(bounds.begin(), bounds.end());
  histogram.mutable_counts()->Resize(static_cast<int>(bounds.size()) + 1, 0);
  return histogram;
}

void Count(double value, v1::Histogram* histogram) {
  const auto& bounds = histogram->bounds();
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
  ++*(histogram->mutable_counts()->begin() + (bound - bounds.begin()));
  histogram->set_sum(histogram->sum() + value);
}

uint64_t CountOf(const v1::Histogram& histogram) {
  return std::accumulate(histogram.counts().begin(), histogram.counts().end(),
                         uint64_t{0});
}

}  // namespace ringfleet::coordinator
