// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_MEMORY_COMMUNICATOR_H_
#define RINGFLEET_TESTS_TESTING_MEMORY_COMMUNICATOR_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cluster/communicator.h"
#include "kernels/dtype.h"
#include "kernels/mutex.h"

namespace ringfleet::testing {

// What ranks that are threads of one test share: the plainest collectives.
class MemoryWorld {
 public:
  explicit MemoryWorld(int size) : contributions_(size) {}
  int size() const { return static_cast<int>(contributions_.size()); }

  // Hands in one rank's bytes; returns everybody's, by rank.
  std::vector<std::string> Exchange(int rank, std::string bytes) {
    MutexLock lock(&mu_);
    while (leaving_ > 0) changed_.Wait(&mu_);
    contributions_[rank] = std::move(bytes);
    if (++arrived_ == size()) {
      arrived_ = 0;
      leaving_ = size();
      changed_.NotifyAll();
    } else {
      while (leaving_ == 0) changed_.Wait(&mu_);
    }
    std::vector<std::string> all = contributions_;
    if (--leaving_ == 0) changed_.NotifyAll();
    return all;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  int leaving_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> contributions_;
};

// Sums in rank order, each partial and the sum rounded to the wire.
class MemoryCommunicator final : public cluster::Communicator {
 public:
  MemoryCommunicator(MemoryWorld* world, int rank)
      : world_(world), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }

  absl::Status AllReduce(absl::Span<float> data, cluster::Wire wire,
                         uint64_t check, cluster::Deadline) override {
    Round(data, wire);
    std::string bytes(reinterpret_cast<const char*>(data.data()),
                      data.size() * sizeof(float));
    bytes.append(reinterpret_cast<const char*>(&check), sizeof(check));
    std::fill(data.begin(), data.end(), 0.0f);
    for (const std::string& part : world_->Exchange(rank_, bytes)) {
      if (part.size() != bytes.size() ||
          std::memcmp(part.data() + data.size() * sizeof(float), &check,
                      sizeof(check)) != 0) {
        return absl::FailedPreconditionError("ranks disagree");
      }
      for (size_t i = 0; i < data.size(); ++i) {
        float value;
        std::memcpy(&value, part.data() + i * sizeof(float), sizeof(float));
        data[i] += value;
      }
    }
    Round(data, wire);
    return absl::OkStatus();
  }

  absl::Status AllGather(absl::Span<char> data,
                         absl::Span<const uint64_t> offsets,
                         cluster::Deadline) override {
    const std::vector<std::string> all = world_->Exchange(
        rank_, std::string(data.data() + offsets[rank_],
                           offsets[rank_ + 1] - offsets[rank_]));
    for (int rank = 0; rank < size(); ++rank) {
      std::copy(all[rank].begin(), all[rank].end(),
                data.begin() + offsets[rank]);
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(absl::Span<float> data, absl::Span<const uint64_t>,
                             cluster::Wire wire,
                             cluster::Deadline deadline) override {
    return AllReduce(data, wire, 0, deadline);
  }

  absl::Status Barrier(cluster::Deadline) override {
    world_->Exchange(rank_, "");
    return absl::OkStatus();
  }

 private:
  static void Round(absl::Span<float> data, cluster::Wire wire) {
    if (wire != cluster::Wire::kBf16) return;
    for (float& value : data) value = kernels::RoundToBf16(value);
  }

  MemoryWorld* const world_;
  const int rank_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_MEMORY_COMMUNICATOR_H_
