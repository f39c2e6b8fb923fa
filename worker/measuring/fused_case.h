// SPDX-License-Identifier: Apache-2.0
// A product that is fused with an exchange of rows, over generated matrices,
// beside the same product after or before the exchange, and each of the two
// alone.
#ifndef RINGFLEET_WORKER_MEASURING_FUSED_CASE_H_
#define RINGFLEET_WORKER_MEASURING_FUSED_CASE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/collectives/communicator.h"
#include "cluster/wire/frame.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"
#include "worker/fused/all_gather_matmul.h"
#include "worker/fused/matmul_reduce_scatter.h"
#include "worker/measuring/bench_case.h"

namespace ringfleet::worker {

// X [rows, inputs] times weights [inputs, outputs]. all_gather_matmul has the
// rows of X and the outputs shared out over ranks, matmul_reduce_scatter the
// inputs, and the rows of the sum.
class FusedCase final : public BenchCase {
 public:
  struct Spec {
    cluster::Operation operation = cluster::Operation::kAllGatherMatmul;
    cluster::Wire wire = cluster::Wire::kF32;  // Of sums.
    // Of the communicator; sums round a ring travel as float32.
    cluster::Algorithm algorithm = cluster::Algorithm::kOneShot;
    size_t rows = 0;
    size_t inputs = 0;
    size_t outputs = 0;
    kernels::WeightForm form = kernels::WeightForm::kInt8;
    // Unset: FusedTiles::Default.
    std::optional<FusedTiles> tiles;
  };
  // kCompute of a gather multiplies what the run before it has gathered.
  enum Way { kFused, kUnfused, kCompute, kCommunicate, kWays };

  FusedCase(cluster::Communicator* communicator, kernels::ThreadPool* pool,
            const Spec& spec);

  // Memory that a case takes on each of `ranks` ranks; saturates.
  static uint64_t MemoryBytes(const Spec& spec, int ranks);
  // Of the matrix that is gathered or scattered.
  static uint64_t MatrixBytes(const Spec& spec);
  // The same as it travels.
  static uint64_t WireBytes(const Spec& spec);

  uint64_t bytes() const override { return MatrixBytes(spec_); }
  int num_ways() const override { return kWays; }
  bool EndsWithTheLast() const override { return true; }
  void Reset() override;
  absl::Status Run(int way, cluster::Deadline deadline) override;
  // Bit for bit: both operations have one order of every sum.
  uint64_t CountWrong() override;
  uint64_t ResultHash() const override;
  bool Replicated() const override { return false; }

  const FusedTiles& tiles() const { return tiles_; }

 private:
  bool gathers() const {
    return spec_.operation == cluster::Operation::kAllGatherMatmul;
  }
  kernels::WeightMatrix Weights(size_t inputs) const;
  // Rows of X as rank `rank` holds them: of its share of the inputs.
  void GenerateRows(int rank, kernels::RowRange rows, float* out) const;
  size_t InputsOf(int rank) const;
  absl::Status Gather(bool multiply, cluster::Deadline deadline);
  absl::Status Scatter(const kernels::WeightMatrix& w,
                       cluster::Deadline deadline);
  void MultiplyAll(float* y);
  std::vector<float> ExpectedSums() const;

  cluster::Communicator* const communicator_;
  kernels::ThreadPool* const pool_;
  const Spec spec_;
  const int rank_;
  const int size_;
  const cluster::SplitRows split_;
  kernels::WeightMatrix weights_;  // Of this rank.
  kernels::WeightMatrix nothing_;  // [outputs, 0]
  FusedTiles tiles_;
  std::vector<float> x_;        // This rank's share.
  kernels::Activations own_x_;  // The same as a gather's products read it.
  std::vector<float> result_;   // [rows, own outputs], or [own rows, outputs]
  std::vector<float> partial_;  // [rows, outputs] of a scatter.
  std::vector<uint64_t> offsets_;
  FusedWorkspace workspace_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_FUSED_CASE_H_
