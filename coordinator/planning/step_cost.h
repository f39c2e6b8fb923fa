// SPDX-License-Identifier: Apache-2.0
// Times of a step's parts on a host and between hosts, by a model of memory
// reads, products and messages. Constants are measured (perf/results) or said
// to be assumed.
//
//   product    fourth root of (bytes / read rate)^4 + (operations / rate)^4:
//              reading and multiplying overlap, less well where they balance;
//              the rates are those of host_spec.h
//   attention  operations over cached positions against the cache's bytes
//   exchange   latency + software per message, bytes over the link, by the
//              algorithm that the default table chooses
//
// Bytes are counted as workers count them (StepResult.bytes_read).
#ifndef RINGFLEET_COORDINATOR_PLANNING_STEP_COST_H_
#define RINGFLEET_COORDINATOR_PLANNING_STEP_COST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/model/host_spec.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/shard_plan.h"
#include "cluster/model/shard_sizes.h"
#include "cluster/wire/op_descriptor.h"
#include "kernels/dtype.h"

namespace ringfleet::coordinator {

// The slowest pair of ranks: every exchange waits for it.
struct NetworkSpec {
  double bytes_per_second = 0;  // One direction, headers included.
  double latency_seconds = 0;   // One way, without this program's software.
};

// Measured; see perf/results for the tables. On two Zen 4 cores:
// Software of one message between two processes, and of each further one
// (collectives.md: 17 to 23 us for 4 bytes).
inline constexpr double kMessageSeconds = 15e-6;
inline constexpr double kFurtherMessageSeconds = 8e-6;
// Per byte in sender's and receiver's software: 0.6 to 1.5 ms for 1.8 MB.
inline constexpr double kSoftwareSecondsPerByte = 0.4e-9;
// Ethernet's and TCP's headers: 1448 of 1514 bytes are payload.
inline constexpr double kPayloadShare = 1448.0 / 1514.0;
// Loops over the threads, norms, routing (tokens_per_second.md: 7 layers with
// nothing to read take 0.94 ms).
inline constexpr double kLayerOverheadSeconds = 0.1e-3;

// On two cores of Sapphire Rapids (steps.md):
// Time that a rank spends outside of a prompt's long parts, relative to these
// parts: 65 of 1613 and 123 of 1934 ms. Most of it is waiting for a late rank.
// Steps that generate wait for a hundredth.
inline constexpr double kPromptWaitShare = 0.06;
// One thread's time for a logit of a sequence that a token is drawn for: 7.7 ms
// for 32 times 32768.
inline constexpr double kDrawSecondsPerLogit = 7.3e-9;
// Times that a product's float32 results cross memory after it: SiLU, sums of
// experts and norms read them and write their own.
inline constexpr double kOutputCrossings = 2;
// Times that the absorbed form's float32 queries and sums cross memory: they
// are written, quantised, brought into order and read again. 16 ms where the
// products and the attention take 6.
inline constexpr double kAbsorbedCrossings = 5;

// One step: `sequences` of `rows` new tokens each, all behind `first_position`
// cached tokens.
struct StepShape {
  int64_t sequences = 1;
  int64_t rows = 1;
  int64_t first_position = 0;
  bool draws = true;  // A token of each sequence: the head is needed.
  int64_t tokens() const { return sequences * rows; }
};

struct StepCost {
  // Seconds. Ranks wait for each other twice a layer, so a part is the slowest
  // rank's.
  double attention = 0;
  double feed_forward = 0;
  double head = 0;
  double exchange = 0;
  double overhead = 0;
  double bytes_read = 0;  // From memory, of all ranks together.
  double wire_bytes = 0;  // Sent by one rank.
  int collectives = 0;    // That sum or gather activations.
  double seconds() const {
    return attention + feed_forward + head + exchange + overhead;
  }
};

struct CostInputs {
  cluster::ModelSpec spec;
  cluster::WeightForms forms;
  kernels::Dtype cache_dtype = kernels::Dtype::kBf16;
  cluster::Wire wire = cluster::Wire::kBf16;
  std::vector<cluster::HostSpec> hosts;  // By rank.
  NetworkSpec network;
};

// Seconds and bytes of one rank's part.
struct PartCost {
  double seconds = 0;
  double bytes = 0;
  void Add(const PartCost& other) {
    seconds += other.seconds;
    bytes += other.bytes;
  }
};

// The cost of `rows` rows of activations times the matrix, with the use of the
// results.
PartCost ProductCost(const cluster::LocalMatrix& matrix, double rows,
                     const cluster::HostSpec& host);

// Seconds of one exchange between `size` ranks, and the bytes that each sends.
// `bytes` counts the whole vector on the wire.
struct ExchangeCost {
  double seconds = 0;
  double sent_bytes = 0;
};
ExchangeCost AllReduceCost(uint64_t bytes, int size,
                           const NetworkSpec& network);
// A reduce-scatter costs as much. Both are direct: one step.
ExchangeCost AllGatherCost(uint64_t bytes, int size,
                           const NetworkSpec& network);

// Mean number of distinct experts that `tokens` tokens choose, if each chooses
// `chosen` of `experts` with equal probability.
double DistinctExperts(double experts, double chosen, double tokens);

// The mean of the largest of `groups` independent binomial numbers of `trials`
// with probability p: the experts that the busiest rank has to read.
double MeanMaximum(int trials, double p, int groups);

// One rank's matrices of a layer with experts or without.
class RankShare {
 public:
  // All arguments must outlive this object.
  RankShare(const CostInputs& inputs,
            const std::vector<cluster::ModelTensor>& dense,
            const std::vector<cluster::ModelTensor>& moe,
            const std::vector<cluster::ModelTensor>& root,
            const cluster::ShardPlan& plan, const cluster::HostSpec& host);

  const cluster::ShardPlan& plan() const { return plan_; }
  const cluster::HostSpec& host() const { return host_; }

  PartCost Attention(const StepShape& step) const;
  // The matrices of a feed-forward network: all three, the last, or the others.
  enum class Matrices { kAll, kFirst, kLast };
  PartCost DenseMlp(double tokens, Matrices matrices = Matrices::kAll) const;
  // Router (with all matrices) and shared expert for `own` tokens, routed
  // experts for those of `all` tokens that come to this rank. Seconds are those
  // of the rank with most work if `busiest`, else the mean. Bytes are the mean.
  PartCost Moe(double own, double all, bool busiest,
               Matrices matrices = Matrices::kAll) const;
  // With the drawing of a token for each row.
  PartCost Head(double tokens) const;

  // Products of the parts above that every rank has whole: latents and router.
  PartCost Latents(double rows) const;
  PartCost Router(double rows) const;
  // Products that run beside exchanges of a prompt: queries and outputs of
  // heads, gate and up of a dense layer or of the shared expert.
  PartCost Queries(double rows) const;
  PartCost Outputs(double rows) const;
  PartCost GateUp(double rows, bool moe) const;

 private:
  const CostInputs& inputs_;
  const cluster::ShardPlan plan_;
  const cluster::HostSpec host_;
  std::vector<cluster::LocalMatrix> dense_;
  std::vector<cluster::LocalMatrix> moe_;
  std::vector<cluster::LocalMatrix> root_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_PLANNING_STEP_COST_H_
