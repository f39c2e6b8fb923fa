// SPDX-License-Identifier: Apache-2.0
#include "worker/model/row_gather.h"

#include <algorithm>
#include <cstring>

namespace ringfleet::worker {

absl::Status GatherWantedRows(LayerContext& context, const RowSplit& split,
                              const float* own,
                              absl::Span<const uint32_t> wanted, float* all) {
  const size_t row_bytes = context.spec.hidden_size * sizeof(float);
  const size_t hidden = context.spec.hidden_size;
  TimedCommunicator& communicator = context.communicator;
  std::vector<uint64_t>& offsets = communicator.gather_offsets();
  offsets.clear();
  for (const uint64_t offset : split.offsets) {
    const auto before = std::lower_bound(wanted.begin(), wanted.end(), offset);
    offsets.push_back((before - wanted.begin()) * row_bytes);
  }
  char* rows = Grow(communicator.gather_buffer(), wanted.size() * row_bytes);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] < split.begin() || wanted[i] >= split.end()) continue;
    std::memcpy(rows + i * row_bytes,
                own + (wanted[i] - split.begin()) * hidden, row_bytes);
  }
  RF_RETURN_IF_ERROR(communicator.AllGather(
      absl::MakeSpan(rows, wanted.size() * row_bytes), offsets));
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::memcpy(all + wanted[i] * hidden, rows + i * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
