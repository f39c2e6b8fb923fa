// SPDX-License-Identifier: Apache-2.0
// Predicts the times of a step's parts on a host and between hosts, by a model
// of memory reads, products and messages. Constants are measured (perf/results)
// unless their comment calls them assumed.
//
//   product    fourth root of (bytes / read rate)^4 + (operations / rate)^4.
//              Reading and multiplying overlap. They overlap worst if both take
//              equal time. The rates are those of host_spec.h.
//   attention  time of the operations over cached positions and time of reading
//              the cache, combined by AttentionSeconds of host_spec.h
//   exchange   latency and software time of each message, plus bytes over the
//              link's rate, by the algorithm that the default table chooses
//
// Bytes read are those that workers report in StepResult.bytes_read.
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

// Rates of the network. Those of the slowest pair of ranks count, because every
// exchange waits for it.
struct NetworkSpec {
  double bytes_per_second = 0;  // In one direction, with headers.
  double latency_seconds = 0;   // One way, without this program's software.
};

// The next constants were measured on two Zen 4 cores (tables: perf/results).

// Software time of one message between two processes, and of each further
// message that is sent together with the first (collectives.md: 17 to 23 us for
// 4 bytes).
inline constexpr double kMessageSeconds = 15e-6;
inline constexpr double kFurtherMessageSeconds = 8e-6;
// Software time of each byte, in sender and receiver: 0.6 to 1.5 ms for 1.8 MB.
inline constexpr double kSoftwareSecondsPerByte = 0.4e-9;
// Payload of an Ethernet frame, relative to all bytes: 1448 of 1514 bytes. The
// rest are headers of Ethernet, IP and TCP.
inline constexpr double kPayloadShare = 1448.0 / 1514.0;
// Time of a layer besides weights, cache and exchanges: starting threads,
// norms, routing (tokens_per_second.md: 7 layers with nothing to read take 0.94
// ms).
inline constexpr double kLayerOverheadSeconds = 0.1e-3;

// The next constants were measured on two cores of Sapphire Rapids (steps.md).

// Time of a prompt step that a rank spends outside of attention and
// feed-forward, relative to both: 65 of 1613 and 123 of 1934 ms. A rank waits
// for a late rank most of this time. In a decode step, the waiting time is
// about 1 %, and not counted.
inline constexpr double kPromptWaitShare = 0.06;
// Time of one thread to draw a token, for each logit: 7.7 ms for 32 sequences
// with 32768 logits each.
inline constexpr double kDrawSecondsPerLogit = 7.3e-9;
// Number of times that the float32 results of a product cross memory after the
// product. SiLU, sums of experts and norms read the results and write their
// own.
inline constexpr double kOutputCrossings = 2;
// Number of times that the float32 queries and sums of absorbed attention cross
// memory. They are written, quantised, reordered and read again. Measured: 16
// ms, while products and attention take 6 ms.
inline constexpr double kAbsorbedCrossings = 5;

// One step of `sequences` sequences. Each sequence has `first_position` cached
// tokens and `rows` new tokens.
struct StepShape {
  int64_t sequences = 1;
  int64_t rows = 1;
  int64_t first_position = 0;
  bool draws = true;  // Draws a token for each sequence, which needs the head.
  int64_t tokens() const { return sequences * rows; }
};

// Predicted cost of one step.
struct StepCost {
  // Seconds of each part. Ranks wait for each other twice in each layer, so the
  // slowest rank decides the time of a part.
  double attention = 0;
  double feed_forward = 0;
  double head = 0;
  double exchange = 0;
  double overhead = 0;
  double bytes_read = 0;  // From memory, by all ranks together.
  double wire_bytes = 0;  // Sent by one rank.
  int collectives = 0;    // Number of collectives that carry activations.
  double seconds() const {
    return attention + feed_forward + head + exchange + overhead;
  }
};

// A model, its number formats and the hosts that run it.
struct CostInputs {
  cluster::ModelSpec spec;
  cluster::WeightForms forms;
  kernels::Dtype cache_dtype = kernels::Dtype::kBf16;
  cluster::Wire wire = cluster::Wire::kBf16;
  std::vector<cluster::HostSpec> hosts;  // By rank.
  NetworkSpec network;
};

// Cost of one part of a step on one rank.
struct PartCost {
  double seconds = 0;
  double bytes = 0;  // Read from memory.
  void Add(const PartCost& other) {
    seconds += other.seconds;
    bytes += other.bytes;
  }
};

// Returns the cost of `rows` rows of activations times `matrix`. Includes the
// time in which the results cross memory (kOutputCrossings).
PartCost ProductCost(const cluster::LocalMatrix& matrix, double rows,
                     const cluster::HostSpec& host);

// Cost of one exchange.
struct ExchangeCost {
  double seconds = 0;
  double sent_bytes = 0;  // By each rank.
};

// Return the cost of an all-reduce, or of an all-gather, between `size` ranks.
// `bytes` counts the whole vector on the wire. A reduce-scatter costs as much
// as an all-gather. AllGatherCost assumes the direct algorithm, in which every
// rank sends to all other ranks at once.
ExchangeCost AllReduceCost(uint64_t bytes, int size,
                           const NetworkSpec& network);
ExchangeCost AllGatherCost(uint64_t bytes, int size,
                           const NetworkSpec& network);

// Returns the mean number of distinct experts that `tokens` tokens choose. Each
// token chooses `chosen` of `experts` experts with equal probability.
double DistinctExperts(double experts, double chosen, double tokens);

// Returns the mean of the largest of `groups` independent binomial numbers of
// `trials` trials with probability p. The result is the number of experts that
// the busiest rank reads.
double MeanMaximum(int trials, double p, int groups);

// Costs of one rank's part of a model. The functions return costs of one layer,
// or of the head.
class RankShare {
 public:
  // `dense` and `moe` are the tensors of one layer without or with experts.
  // `root` are the tensors outside of layers. `inputs` must outlive this
  // object.
  RankShare(const CostInputs& inputs,
            const std::vector<cluster::ModelTensor>& dense,
            const std::vector<cluster::ModelTensor>& moe,
            const std::vector<cluster::ModelTensor>& root,
            const cluster::ShardPlan& plan, const cluster::HostSpec& host);

  const cluster::ShardPlan& plan() const { return plan_; }
  const cluster::HostSpec& host() const { return host_; }

  // Returns the cost of attention.
  PartCost Attention(const StepShape& step) const;
  // The matrices of a feed-forward network. kAll: gate, up and down. kFirst:
  // gate and up. kLast: down.
  enum class Matrices { kAll, kFirst, kLast };
  // Returns the cost of the feed-forward network of a dense layer.
  PartCost DenseMlp(double tokens, Matrices matrices = Matrices::kAll) const;
  // Returns the cost of a layer of experts: router and shared expert for `own`
  // tokens, and routed experts for the tokens of `all` that choose an expert of
  // this rank. Seconds are those of the rank with the most work if `busiest`,
  // else the mean over ranks. Bytes are the mean over ranks.
  PartCost Moe(double own, double all, bool busiest,
               Matrices matrices = Matrices::kAll) const;
  // Returns the cost of the head for `tokens` rows, with the time to draw a
  // token for each row.
  PartCost Head(double tokens) const;

  // Return the cost of the products whose matrices every rank has whole:
  // latents and router. Attention and Moe include them.
  PartCost Latents(double rows) const;
  PartCost Router(double rows) const;
  // Return the cost of the products that run beside a prompt's exchanges:
  // queries of heads, outputs of heads, and gate and up of a dense layer or of
  // the shared expert (`moe`).
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
