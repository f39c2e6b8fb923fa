// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_MEMORY_COMMUNICATOR_H_
#define RINGFLEET_TESTS_TESTING_MEMORY_COMMUNICATOR_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "cluster/collectives/communicator.h"
#include "cluster/process/status_macros.h"
#include "kernels/mutex.h"
#include "tests/testing/collective_cases.h"

namespace ringfleet::testing {

// Exchanges bytes between ranks that are threads of one test.
class MemoryWorld {
 public:
  explicit MemoryWorld(int size) : contributions_(size) {}
  int size() const { return static_cast<int>(contributions_.size()); }

  // Passes on the bytes of one rank. Returns the bytes of all ranks, by rank.
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

// A communicator over a MemoryWorld. Adds in rank order. Rounds each summand
// and the sum to the wire.
class MemoryCommunicator final : public cluster::Communicator {
 public:
  MemoryCommunicator(MemoryWorld* world, int rank)
      : world_(world), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }

  absl::Status AllReduce(absl::Span<const float> input,
                         absl::Span<float> output, cluster::Encoding encoding,
                         uint64_t check, cluster::Deadline) override {
    std::vector<float> part(input.begin(), input.end());
    RoundToWire(encoding.wire, encoding.row_elements, part);
    std::string bytes(reinterpret_cast<const char*>(part.data()),
                      part.size() * sizeof(float));
    bytes.append(reinterpret_cast<const char*>(&check), sizeof(check));
    std::vector<float> sum(input.size());
    for (const std::string& other : world_->Exchange(rank_, bytes)) {
      if (other.size() != bytes.size() ||
          std::memcmp(other.data() + sum.size() * sizeof(float), &check,
                      sizeof(check)) != 0) {
        return absl::FailedPreconditionError("ranks disagree");
      }
      for (size_t i = 0; i < sum.size(); ++i) {
        float value;
        std::memcpy(&value, other.data() + i * sizeof(float), sizeof(float));
        sum[i] += value;
      }
    }
    RoundToWire(encoding.wire, encoding.row_elements, sum);
    std::copy(sum.begin(), sum.end(), output.begin());
    return absl::OkStatus();
  }

  absl::Status AllGather(absl::Span<const char> share, absl::Span<char> output,
                         absl::Span<const uint64_t> offsets,
                         cluster::Deadline) override {
    const std::vector<std::string> all =
        world_->Exchange(rank_, std::string(share.data(), share.size()));
    for (int rank = 0; rank < size(); ++rank) {
      std::copy(all[rank].begin(), all[rank].end(),
                output.begin() + offsets[rank]);
    }
    return absl::OkStatus();
  }

  absl::Status Barrier(cluster::Deadline) override {
    world_->Exchange(rank_, "");
    return absl::OkStatus();
  }

  // Rounds each summand to the wire, like a direct reduce-scatter.
  absl::Status ReduceScatter(absl::Span<float> input, absl::Span<float> share,
                             absl::Span<const uint64_t> offsets,
                             cluster::Encoding encoding, uint64_t check,
                             cluster::Deadline) override {
    RF_RETURN_IF_ERROR(Agree(check));
    std::vector<float> part(input.begin(), input.end());
    RoundToWire(encoding.wire, encoding.row_elements, part);
    std::fill(share.begin(), share.end(), 0.0f);
    for (const std::string& other : world_->Exchange(
             rank_, std::string(reinterpret_cast<const char*>(part.data()),
                                part.size() * sizeof(float)))) {
      const char* own = other.data() + offsets[rank_] * sizeof(float);
      for (size_t i = 0; i < share.size(); ++i) {
        float value;
        std::memcpy(&value, own + i * sizeof(float), sizeof(float));
        share[i] += value;
      }
    }
    return absl::OkStatus();
  }

  absl::Status StreamingAllGather(const cluster::SplitRowsLayout& layout,
                                  absl::Span<const char> own,
                                  cluster::StreamingReceiver& receiver,
                                  uint64_t, cluster::Deadline) override {
    segment_bytes_.insert(layout.segment_bytes);
    const cluster::SplitRows parts(layout.rows, size());
    const std::vector<std::string> all =
        world_->Exchange(rank_, std::string(own.data(), own.size()));
    for (int shard = 0; shard < size(); ++shard) {
      if (shard == rank_) continue;
      for (const auto part : {cluster::Side::kLeft, cluster::Side::kRight}) {
        const kernels::RowRange rows = parts.Of({shard, part});
        const absl::Span<const char> piece =
            absl::MakeConstSpan(all[shard])
                .subspan(
                    (rows.begin - parts.Shard(shard).begin) * layout.row_size,
                    rows.size() * layout.row_size);
        receiver.Arrived({shard, part}, {&piece, 1});
      }
    }
    return absl::OkStatus();
  }

  // Rounds each summand to the wire and adds in rank order.
  absl::Status StreamingReduceScatter(const cluster::SplitRowsLayout& layout,
                                      cluster::Encoding encoding,
                                      cluster::StreamingSource& source,
                                      uint64_t check,
                                      cluster::Deadline) override {
    RF_RETURN_IF_ERROR(Agree(check));
    segment_bytes_.insert(layout.segment_bytes);
    const cluster::SplitRows parts(layout.rows, size());
    std::vector<float> partial(layout.rows * layout.row_size);
    const auto for_each_part = [&](int shard, auto visit) {
      for (const auto part : {cluster::Side::kLeft, cluster::Side::kRight}) {
        const kernels::RowRange rows = parts.Of({shard, part});
        visit(cluster::ShardPart{shard, part}, rows.size(),
              rows.begin * layout.row_size, rows.size() * layout.row_size);
      }
    };
    for (int shard = 0; shard < size(); ++shard) {
      for_each_part(shard, [&](cluster::ShardPart which, size_t rows,
                               size_t begin, size_t count) {
        while (source.Ready(which) < rows) {
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        if (count > 0) {
          std::copy_n(source.Partial(which), count, partial.data() + begin);
        }
      });
    }
    const std::vector<std::string> all = world_->Exchange(
        rank_, std::string(reinterpret_cast<const char*>(partial.data()),
                           partial.size() * sizeof(float)));
    for_each_part(rank_, [&](cluster::ShardPart which, size_t, size_t begin,
                             size_t count) {
      std::vector<float> sum(count);
      std::vector<float> summand(count);
      for (int rank = 0; rank < size(); ++rank) {
        std::memcpy(summand.data(), all[rank].data() + begin * sizeof(float),
                    count * sizeof(float));
        RoundToWire(encoding.wire, encoding.row_elements, summand);
        for (size_t i = 0; i < count; ++i) {
          sum[i] = rank == 0 ? summand[i] : sum[i] + summand[i];
        }
      }
      std::copy(sum.begin(), sum.end(), source.Partial(which));
    });
    return absl::OkStatus();
  }

  absl::Status AllToAll(absl::Span<const char> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<char> output,
                        absl::Span<const uint64_t> output_offsets,
                        cluster::Deadline) override {
    std::string sent(reinterpret_cast<const char*>(input_offsets.data()),
                     input_offsets.size() * sizeof(uint64_t));
    const size_t head = sent.size();
    sent.append(input.data(), input.size());
    const std::vector<std::string> all = world_->Exchange(rank_, sent);
    for (int rank = 0; rank < size(); ++rank) {
      uint64_t part[2];  // For this rank.
      std::memcpy(part, all[rank].data() + rank_ * sizeof(uint64_t),
                  sizeof(part));
      if (part[1] - part[0] !=
          output_offsets[rank + 1] - output_offsets[rank]) {
        return absl::FailedPreconditionError("ranks disagree in their parts");
      }
      std::copy_n(all[rank].data() + head + part[0], part[1] - part[0],
                  output.data() + output_offsets[rank]);
    }
    return absl::OkStatus();
  }

  // Rounds each part to the wire, also the rank's own part.
  absl::Status AllToAll(absl::Span<const float> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<float> output,
                        absl::Span<const uint64_t> output_offsets,
                        cluster::Encoding encoding,
                        cluster::Deadline deadline) override {
    std::vector<float> sent;
    const auto in_bytes = [](absl::Span<const uint64_t> offsets) {
      std::vector<uint64_t> bytes;
      for (const uint64_t offset : offsets) {
        bytes.push_back(offset * sizeof(float));
      }
      return bytes;
    };
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<float> part(input.begin() + input_offsets[rank],
                              input.begin() + input_offsets[rank + 1]);
      RoundToWire(encoding.wire, encoding.row_elements, part);
      sent.insert(sent.end(), part.begin(), part.end());
    }
    return AllToAll(
        absl::MakeConstSpan(reinterpret_cast<const char*>(sent.data()),
                            sent.size() * sizeof(float)),
        in_bytes(input_offsets),
        absl::MakeSpan(reinterpret_cast<char*>(output.data()),
                       output.size() * sizeof(float)),
        in_bytes(output_offsets), deadline);
  }

  // Operations that models do not use.
  absl::Status AllGather(absl::Span<const float>, absl::Span<float>,
                         absl::Span<const uint64_t>, cluster::Encoding,
                         cluster::Deadline) override {
    return NotHere();
  }
  absl::Status Broadcast(absl::Span<float>, int, cluster::Encoding,
                         cluster::Deadline) override {
    return NotHere();
  }
  void Wake() override {}

  // Returns the segment_bytes of all streaming operations so far.
  const std::set<size_t>& segment_bytes() const { return segment_bytes_; }
  // Returns the `check` arguments of all reduce-scatters so far.
  const std::set<uint64_t>& checks() const { return checks_; }

 private:
  absl::Status Agree(uint64_t check) {
    checks_.insert(check);
    const std::string own(reinterpret_cast<const char*>(&check), sizeof(check));
    for (const std::string& other : world_->Exchange(rank_, own)) {
      if (other != own) return absl::FailedPreconditionError("ranks disagree");
    }
    return absl::OkStatus();
  }

  static absl::Status NotHere() {
    return absl::UnimplementedError("not an operation of a model");
  }

  MemoryWorld* const world_;
  const int rank_;
  std::set<size_t> segment_bytes_;
  std::set<uint64_t> checks_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_MEMORY_COMMUNICATOR_H_
