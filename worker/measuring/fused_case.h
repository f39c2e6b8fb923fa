// SPDX-License-Identifier: Apache-2.0
// A product that is fused with an exchange of rows, over generated matrices.
// The fused operation is timed in turns with three others: product and exchange
// one after the other, the product alone, and the exchange alone.
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

// Multiplies X [rows, inputs] by weights [inputs, outputs]. Operation
// all_gather_matmul splits the rows of X and the outputs over ranks. Operation
// matmul_reduce_scatter splits the inputs and the rows of the result.
class FusedCase final : public BenchCase {
 public:
  struct Spec {
    cluster::Operation operation = cluster::Operation::kAllGatherMatmul;
    cluster::Wire wire = cluster::Wire::kF32;  // Type of travelling summands.
    // The communicator's algorithm. On a ring, sums travel as float32.
    cluster::Algorithm algorithm = cluster::Algorithm::kOneShot;
    size_t rows = 0;
    size_t inputs = 0;
    size_t outputs = 0;
    kernels::WeightForm form = kernels::WeightForm::kInt8;
    // Sizes of tiles. Unset: FusedTiles::Default.
    std::optional<FusedTiles> tiles;
  };
  // kFused: the fused operation. kUnfused: product and exchange one after the
  // other. kCompute: the product alone; a gather's product reads the rows that
  // an earlier run has gathered. kCommunicate: the exchange alone.
  enum Way { kFused, kUnfused, kCompute, kCommunicate, kWays };

  FusedCase(cluster::Communicator* communicator, kernels::ThreadPool* pool,
            const Spec& spec);

  // Returns the bytes that the case takes on each of `ranks` ranks. Saturates.
  static uint64_t MemoryBytes(const Spec& spec, int ranks);
  // Returns the bytes of the gathered or scattered matrix as float32.
  // Saturates.
  static uint64_t MatrixBytes(const Spec& spec);
  // Returns the bytes of the gathered or scattered matrix on the wire.
  static uint64_t WireBytes(const Spec& spec);

  uint64_t bytes() const override { return MatrixBytes(spec_); }
  int num_ways() const override { return kWays; }
  bool EndsWithTheLast() const override { return true; }
  void Reset() override;
  absl::Status Run(int way, cluster::Deadline deadline) override;
  // Compares bit for bit, because both operations fix the order of every sum.
  uint64_t CountWrong() override;
  uint64_t ResultHash() const override;
  bool Replicated() const override { return false; }

  const FusedTiles& tiles() const { return tiles_; }

 private:
  bool gathers() const {
    return spec_.operation == cluster::Operation::kAllGatherMatmul;
  }
  kernels::WeightMatrix Weights(size_t inputs) const;
  // Generates `rows` of X, with the inputs that rank `rank` holds.
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
  kernels::WeightMatrix weights_;  // This rank's part.
  kernels::WeightMatrix nothing_;  // [outputs, 0], for kCommunicate.
  FusedTiles tiles_;
  std::vector<float> x_;        // This rank's share.
  kernels::Activations own_x_;  // x_ in the form that a gather's products read.
  std::vector<float> result_;   // [rows, own outputs], or [own rows, outputs]
  std::vector<float> partial_;  // [rows, outputs] of a scatter.
  std::vector<uint64_t> offsets_;
  FusedWorkspace workspace_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_FUSED_CASE_H_
