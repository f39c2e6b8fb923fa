// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/nearest_name.h"

#include <algorithm>
#include <vector>

namespace ringfleet::cluster {
namespace {

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

absl::string_view NearestName(absl::string_view name,
                              absl::Span<const absl::string_view> known) {
  size_t limit = std::max<size_t>(2, name.size() / 3) + 1;
  absl::string_view nearest;
  for (const absl::string_view candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < limit) {
      limit = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace ringfleet::cluster
