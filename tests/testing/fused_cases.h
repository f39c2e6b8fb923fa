// SPDX-License-Identifier: Apache-2.0
// One rank's part of a product that is fused with an exchange, with the
// expected result.
#ifndef RINGFLEET_TESTS_TESTING_FUSED_CASES_H_
#define RINGFLEET_TESTS_TESTING_FUSED_CASES_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/process/status_macros.h"
#include "kernels/mutex.h"
#include "kernels/products/matmul.h"
#include "kernels/products/weight_matrix.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/soon.h"
#include "worker/fused/all_gather_matmul.h"
#include "worker/fused/matmul_reduce_scatter.h"

namespace ringfleet::testing {

inline constexpr kernels::WeightForm kForms[] = {
    kernels::WeightForm::kF32, kernels::WeightForm::kBf16,
    kernels::WeightForm::kInt8, kernels::WeightForm::kInt4};

// Returns weights [columns, depth] with values that `seed` determines.
inline kernels::WeightMatrix TestWeights(kernels::WeightForm form, size_t depth,
                                         size_t columns, int seed) {
  kernels::WeightMatrix w(form, columns, depth);
  const std::vector<float> values = RankValues(seed, depth * columns);
  for (size_t o = 0; o < columns; ++o) w.SetRow(o, values.data() + o * depth);
  return w;
}

// Returns x [rows, w.columns()] times `w`, computed without an exchange.
inline std::vector<float> Product(const kernels::WeightMatrix& w,
                                  const std::vector<float>& x, size_t rows) {
  std::vector<float> y(rows * w.rows());
  kernels::ThreadPool pool(1);
  kernels::Activations activations;
  activations.Assign(kernels::ActivationFormFor(w.form()), x.data(), rows,
                     w.columns(), w.columns(), pool);
  kernels::MatMul(w, activations, y.data(), pool);
  return y;
}

// Returns an error that names the first element of `got` with other bits than
// in `want`.
inline absl::Status ExpectSameBits(absl::Span<const float> got,
                                   absl::Span<const float> want) {
  if (got.size() != want.size()) return absl::InternalError("another size");
  const size_t bytes = want.size() * sizeof(float);
  if (bytes == 0 || std::memcmp(got.data(), want.data(), bytes) == 0) {
    return absl::OkStatus();
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i]) {
      return absl::InternalError(
          absl::StrCat("element ", i, " is ", got[i], ", want ", want[i]));
    }
  }
  return absl::OkStatus();
}

// Runs `body` on each rank with a communicator over all ranks.
using RankBody = std::function<absl::Status(cluster::GroupCommunicator&)>;
inline std::vector<absl::Status> RunRanks(
    FakeNetwork& network, const RankBody& body,
    const cluster::AlgorithmTable& table = cluster::AlgorithmTable::Default()) {
  return network.RunOnEveryRank([&](cluster::Transport& transport) {
    cluster::GroupCommunicator group(
        &transport, cluster::WorldGroup(transport.world_size()), table,
        nullptr);
    return body(group);
  });
}

struct GatherShape {
  size_t rows = 0;
  size_t depth = 0;
  size_t columns = 0;   // Of each rank.
  size_t attached = 0;  // Numbers that travel with each row.
};

// One rank's part of an AllGatherMatmul of `shape`, with the expected result. x
// of rank q is RankValues(q).
class GatherCase {
 public:
  GatherCase(int ranks, int rank, const GatherShape& shape,
             kernels::WeightForm form, int threads = 1)
      : shape_(shape),
        rank_(rank),
        split_(shape.rows, ranks),
        weights_(TestWeights(form, shape.depth, shape.columns, 100 + rank)),
        second_(TestWeights(form, shape.depth, 3, 200 + rank)),
        pool_(threads),
        tiles_(worker::FusedTiles::Default(weights_)) {
    for (int q = 0; q < ranks; ++q) {
      const size_t own = split_.Shard(q).size();
      Append(RankValues(q, own * shape.depth), x_);
      Append(RankValues(50 + q, own * shape.attached), attached_);
    }
    own_x_.Assign(kernels::ActivationFormFor(form),
                  x_.data() + split_.Shard(rank).begin * shape.depth,
                  split_.Shard(rank).size(), shape.depth, shape.depth, pool_);
    y_.resize(shape.rows * shape.columns);
    y2_.resize(shape.rows * 3);
    all_attached_.resize(shape.rows * shape.attached);
  }

  worker::FusedTiles& tiles() { return tiles_; }

  absl::Status Run(cluster::Communicator& group,
                   cluster::Deadline deadline = Soon()) {
    const std::vector<worker::FusedOutput> products = {
        {.w = &weights_, .y = y_.data(), .y_stride = shape_.columns},
        {.w = &second_, .y = y2_.data(), .y_stride = 3}};
    std::fill(y_.begin(), y_.end(), -7.0f);
    {
      MutexLock lock(&mu_);
      loaded_.clear();
    }
    Attachment attachment(*this);
    return worker::AllGatherMatmul(
        {.rows = shape_.rows,
         .attached_bytes = shape_.attached * sizeof(float),
         .tiles = tiles_,
         .x = &own_x_,
         .products = products,
         .attachment = &attachment},
        group, workspace_, pool_, deadline);
  }

  // Returns the rows whose attached numbers were loaded in the last Run, in
  // order of arrival. Returns no rows if shape.attached is 0.
  std::vector<size_t> loaded() {
    MutexLock lock(&mu_);
    return loaded_;
  }

  // Compares the result with products of the gathered x.
  absl::Status Check() {
    if (want_.empty()) {
      want_.push_back(Product(weights_, x_, shape_.rows));
      want_.push_back(Product(second_, x_, shape_.rows));
    }
    RF_RETURN_IF_ERROR(ExpectSameBits(y_, want_[0]));
    RF_RETURN_IF_ERROR(ExpectSameBits(y2_, want_[1]));
    return ExpectSameBits(all_attached_, attached_);
  }

 private:
  class Attachment final : public worker::RowAttachment {
   public:
    explicit Attachment(GatherCase& of) : of_(of) {}
    void Store(size_t i, char* bytes) const override {
      const size_t row = of_.split_.Shard(of_.rank_).begin + i;
      std::memcpy(bytes, of_.attached_.data() + row * of_.shape_.attached,
                  of_.shape_.attached * sizeof(float));
    }
    void Load(size_t row, const char* bytes) override {
      {
        MutexLock lock(&of_.mu_);
        of_.loaded_.push_back(row);
      }
      std::memcpy(of_.all_attached_.data() + row * of_.shape_.attached, bytes,
                  of_.shape_.attached * sizeof(float));
    }

   private:
    GatherCase& of_;
  };

  static void Append(const std::vector<float>& values, std::vector<float>& to) {
    to.insert(to.end(), values.begin(), values.end());
  }

  const GatherShape shape_;
  const int rank_;
  const cluster::SplitRows split_;
  const kernels::WeightMatrix weights_;
  const kernels::WeightMatrix second_;
  kernels::ThreadPool pool_;
  worker::FusedTiles tiles_;
  std::vector<float> x_;  // x of all ranks.
  kernels::Activations own_x_;
  std::vector<float> attached_;      // Attached numbers of all ranks.
  std::vector<float> all_attached_;  // Attached numbers that were loaded.
  std::vector<float> y_;
  std::vector<float> y2_;
  std::vector<std::vector<float>> want_;  // Expected y_, then y2_.
  Mutex mu_;
  std::vector<size_t> loaded_ ABSL_GUARDED_BY(mu_);
  worker::FusedWorkspace workspace_;
};

struct ScatterShape {
  size_t rows = 0;
  size_t depth = 0;  // Of each rank.
  size_t columns = 0;
};

// One rank's part of a MatmulReduceScatter of `shape`, with the expected
// result. x of rank q is RankValues(q) without its first column.
class ScatterCase {
 public:
  ScatterCase(int ranks, int rank, const ScatterShape& shape,
              kernels::WeightForm form, cluster::Wire wire, int threads = 1,
              cluster::Algorithm algorithm = cluster::Algorithm::kOneShot)
      : shape_(shape),
        ranks_(ranks),
        rank_(rank),
        split_(shape.rows, ranks),
        form_(form),
        wire_(wire),
        ring_(algorithm == cluster::Algorithm::kRing),
        weights_(TestWeights(form, shape.depth, shape.columns, 300 + rank)),
        pool_(threads),
        tiles_(worker::FusedTiles::Default(weights_)),
        x_(RankValues(rank, shape.rows * (shape.depth + 1))),
        out_(split_.Shard(rank).size() * shape.columns) {}

  worker::FusedTiles& tiles() { return tiles_; }

  absl::Status Run(cluster::Communicator& group,
                   cluster::Deadline deadline = Soon()) {
    std::fill(out_.begin(), out_.end(), -7.0f);
    return worker::MatmulReduceScatter({.rows = shape_.rows,
                                        .wire = wire_,
                                        .tiles = tiles_,
                                        .x = x_.data() + 1,
                                        .x_stride = shape_.depth + 1,
                                        .w = &weights_,
                                        .out = out_.data()},
                                       group, workspace_, pool_, deadline);
  }

  absl::Status Check() {
    if (want_.empty()) want_ = Expected();
    return ExpectSameBits(out_, want_);
  }

 private:
  // Returns the expected sum. A ring adds in the order of each share. Other
  // algorithms add summands, rounded to the wire, in rank order.
  std::vector<float> Expected() const {
    std::vector<float> want(out_.size());
    const kernels::RowRange own = split_.Shard(rank_);
    for (const cluster::Side side :
         {cluster::Side::kLeft, cluster::Side::kRight}) {
      const kernels::RowRange rows = split_.Of({rank_, side});
      const int sign = side == cluster::Side::kLeft ? 1 : -1;
      const size_t begin = (rows.begin - own.begin) * shape_.columns;
      const size_t count = rows.size() * shape_.columns;
      std::vector<float> sum(count);
      for (int hop = 1; hop <= ranks_; ++hop) {
        const int rank =
            ring_ ? ((rank_ + sign * hop) % ranks_ + ranks_) % ranks_ : hop - 1;
        std::vector<float> partial = Partial(rank, rows);
        if (!ring_ && ranks_ > 1) {
          RoundToWire(wire_, shape_.columns, partial);
        }
        for (size_t i = 0; i < count; ++i) {
          sum[i] = hop == 1 ? partial[i] : sum[i] + partial[i];
        }
      }
      std::copy(sum.begin(), sum.end(), want.begin() + begin);
    }
    return want;
  }

  std::vector<float> Partial(int rank, kernels::RowRange rows) const {
    const std::vector<float> all =
        RankValues(rank, shape_.rows * (shape_.depth + 1));
    std::vector<float> x;
    for (size_t row = rows.begin; row < rows.end; ++row) {
      const float* begin = all.data() + row * (shape_.depth + 1) + 1;
      x.insert(x.end(), begin, begin + shape_.depth);
    }
    return Product(TestWeights(form_, shape_.depth, shape_.columns, 300 + rank),
                   x, rows.size());
  }

  const ScatterShape shape_;
  const int ranks_;
  const int rank_;
  const cluster::SplitRows split_;
  const kernels::WeightForm form_;
  const cluster::Wire wire_;
  const bool ring_;
  const kernels::WeightMatrix weights_;
  kernels::ThreadPool pool_;
  worker::FusedTiles tiles_;
  const std::vector<float> x_;
  std::vector<float> out_;
  std::vector<float> want_;
  worker::FusedWorkspace workspace_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FUSED_CASES_H_
