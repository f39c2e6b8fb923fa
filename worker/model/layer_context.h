// SPDX-License-Identifier: Apache-2.0
// The state that all layers of a rank's model share during a step.
#ifndef RINGFLEET_WORKER_MODEL_LAYER_CONTEXT_H_
#define RINGFLEET_WORKER_MODEL_LAYER_CONTEXT_H_

#include <cstdint>
#include <vector>

#include "cluster/collectives/communicator.h"
#include "cluster/model/expert_layout.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "cluster/recording/trace_recorder.h"
#include "kernels/aligned_buffer.h"
#include "kernels/attention/mla.h"
#include "kernels/attention/rope.h"
#include "kernels/products/activations.h"
#include "kernels/products/swiglu.h"
#include "kernels/thread_pool.h"
#include "worker/fused/grow.h"
#include "worker/fused/row_split.h"
#include "worker/fused/timed_communicator.h"
#include "worker/fused/tuned_tiles.h"
#include "worker/model/batch.h"
#include "worker/model/expert_dispatch.h"
#include "worker/model/kv_cache.h"

namespace ringfleet::worker {

// Buffers of rows that travel between data groups (expert_exchange.h).
struct RowExchange {
  std::vector<size_t> route_ends;       // Ends of routes by data group.
  std::vector<uint32_t> sent_rows;      // Own rows, by receiving data group.
  std::vector<uint32_t> received_rows;  // Rows of all groups, by sender.
  std::vector<uint64_t> sent_ends;      // [groups + 1] into sent_rows.
  std::vector<uint64_t> received_ends;  // [groups + 1] into received_rows.
  std::vector<uint64_t> from;  // Offsets of an all-to-all: its input's,
  std::vector<uint64_t> to;    // and its output's.
  std::vector<char> sent;      // Rows as they travel.
  std::vector<char> received;
  std::vector<float> returned;    // [sent rows, D]
  kernels::Activations x;         // Own rows, then received ones.
  std::vector<int32_t> replicas;  // [rows of x, num_experts_per_tok]
  std::vector<float> weights;     // [rows of x, num_experts_per_tok]
};

// Buffers of a step. They grow to the largest step and are used again, so a
// warm decode step allocates nothing.
struct Workspace {
  std::vector<float> residual;      // [rows, D], or [own rows, D].
  RowSplit split;                   // Rows by rank, where rows are split.
  std::vector<float> normed;        // [rows, D]
  kernels::Activations x;           // [rows, D]: `normed`, for products.
  std::vector<float> partial;       // [rows, D], this rank's summand.
  std::vector<float> q_latent;      // [rows, q_lora_rank]
  kernels::Activations q_latent_x;  // `q_latent`, for q_b.
  std::vector<float> q;             // [rows, heads, dn + dr], then rotated.
  std::vector<float> kv;            // [rows, kv_lora_rank + dr]
  std::vector<float> attended;      // [rows, heads, dv]
  kernels::Activations attended_x;  // `attended`, for o.
  std::vector<kernels::MlaSpan> absorbed_spans;
  kernels::MlaWorkspace attention;
  kernels::SwigluWorkspace swiglu;
  std::vector<kernels::SwigluExpert> experts;  // With tokens in this layer.
  kernels::Activations router_x;               // [rows, D], float32.
  std::vector<float> route_logits;             // [rows, experts]
  std::vector<float> route_scratch;            // [3 * experts]
  std::vector<int32_t> route_ids;              // [rows, num_experts_per_tok]
  std::vector<float> route_weights;            // [rows, num_experts_per_tok]
  ExpertDispatch dispatch;
  // [rows, num_experts_per_tok]: index of a held replica, or -1.
  std::vector<int32_t> route_replicas;
  RowExchange exchange;
  Batch own_batch;                          // This rank's rows of a step.
  kernels::Activations gathered_x;          // [rows of all ranks, D]
  std::vector<float> gate_up;               // EarlyProducts: gate x, then up x.
  kernels::AlignedBuffer gathered_weights;  // Packed weights of all ranks.
  std::vector<float> reduced;               // [own rows, D]
  std::vector<uint64_t> element_offsets;    // RowSplit::offsets times D.
  std::vector<uint32_t> listed_rows;        // Result of ListRows.
  std::vector<uint32_t> assigned_rows;      // Results of AssignRows: rows,
  std::vector<float> assigned_weights;      // their router weights,
  std::vector<size_t> first_assigned;       // and [experts + 1] bounds.
  std::vector<char> chosen_experts;         // [held replicas]: has tokens.
  std::vector<char> own_routes;             // Records of own rows' routes.
};

// The rows of one pass over the layers, in the order of data groups.
struct GroupRows {
  std::vector<uint64_t> offsets;  // [groups + 1] bounds of the groups' rows.
  int group = 0;                  // This rank's group.

  size_t all() const { return offsets.back(); }
  size_t begin() const { return offsets[group]; }
  size_t own() const { return offsets[group + 1] - offsets[group]; }
};

// Everything a layer works with in one pass. Belongs to the executor's thread.
struct LayerContext {
  const cluster::ModelSpec& spec;
  const cluster::ShardPlan& plan;                // This rank's.
  const std::vector<cluster::ShardPlan>& plans;  // All ranks'.
  const cluster::ExpertLayout& layout;
  const kernels::Rope& rope;
  float softmax_scale;
  kernels::ThreadPool& pool;
  KvCache& cache;
  TimedCommunicator& communicator;  // Ranks of the data group.
  TimedCommunicator* data_axis;     // Over data groups; null: there is one.
  const GroupRows& group_rows;
  cluster::Wire wire;
  const TunedTiles& tiles;
  size_t fuse_rows;        // ModelSettings::fuse_rows.
  double expert_capacity;  // ModelSettings::expert_capacity.
  Workspace& workspace;
  cluster::TraceRecorder* trace = nullptr;  // May be null.
  // Hash of all experts chosen so far in this step, and of their coordinates.
  // It travels with the next reduction, which fails when ranks differ.
  uint64_t routing_hash = 0;
  // Exact tokens per [layer][expert]; null: not counted.
  std::vector<std::vector<uint64_t>>* expert_counts = nullptr;
  // Routes per [layer] beyond the capacity of coordinates; null: not counted.
  std::vector<uint64_t>* dropped_counts = nullptr;
  // Bytes of weights and cache that the layers needed (StepResult.bytes_read).
  uint64_t bytes_read = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_LAYER_CONTEXT_H_
