// SPDX-License-Identifier: Apache-2.0
// The state that a rank's layers share during a step.
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

// Buffers for rows that travel between data groups (expert_exchange.h).
struct RowExchange {
  // [groups] end of each data group's routes, as ExpertDispatch::Assign wants.
  std::vector<size_t> route_ends;
  // Indices of sent rows among the own rows, by receiving data group. A row
  // that several groups receive is listed once for each.
  std::vector<uint32_t> sent_rows;
  // Indices of received rows among the rows of all groups, by sending group.
  std::vector<uint32_t> received_rows;
  std::vector<uint64_t> sent_ends;      // [groups + 1] bounds in sent_rows.
  std::vector<uint64_t> received_ends;  // [groups + 1] bounds in received_rows.
  std::vector<uint64_t> from;           // Input offsets of an all-to-all.
  std::vector<uint64_t> to;             // Output offsets of an all-to-all.
  std::vector<char> sent;               // Rows by Activations::StoreRow.
  std::vector<char> received;           // Rows for Activations::LoadRow.
  std::vector<float> returned;          // [sent rows, D] sums of experts.
  kernels::Activations x;               // Own rows, then received rows.
  std::vector<int32_t> replicas;        // [rows of x, num_experts_per_tok]
  std::vector<float> weights;           // [rows of x, num_experts_per_tok]
};

// Buffers of a step. Each buffer grows to the largest step and is kept, so a
// decode step after the first allocates nothing. D is hidden_size, dn
// qk_nope_head_dim, dr qk_rope_head_dim, dv v_head_dim.
struct Workspace {
  std::vector<float> residual;      // [rows, D], or [own rows, D] if split.
  RowSplit split;                   // Rows of each rank, if rows are split.
  std::vector<float> normed;        // [rows, D]
  kernels::Activations x;           // [rows, D]: `normed` as products read it.
  std::vector<float> partial;       // [rows, D], this rank's summand.
  std::vector<float> q_latent;      // [rows, q_lora_rank]
  kernels::Activations q_latent_x;  // `q_latent` as q_b reads it.
  std::vector<float> q;             // [rows, heads, dn + dr]
  std::vector<float> kv;            // [rows, kv_lora_rank + dr]
  std::vector<float> attended;      // [rows, heads, dv]
  kernels::Activations attended_x;  // `attended` as o reads it.
  std::vector<kernels::MlaSpan> absorbed_spans;
  kernels::MlaWorkspace attention;
  kernels::SwigluWorkspace swiglu;
  std::vector<kernels::SwigluExpert> experts;  // Experts with tokens.
  kernels::Activations router_x;               // [rows, D], float32.
  std::vector<float> route_logits;             // [rows, experts]
  std::vector<float> route_scratch;            // [3 * experts]
  std::vector<int32_t> route_ids;              // [rows, num_experts_per_tok]
  std::vector<float> route_weights;            // [rows, num_experts_per_tok]
  ExpertDispatch dispatch;
  // [rows, num_experts_per_tok] index of the expert in MoeWeights::experts. -1:
  // another rank serves the route.
  std::vector<int32_t> route_replicas;
  RowExchange exchange;
  Batch own_batch;                          // This rank's rows of a step.
  kernels::Activations gathered_x;          // [rows of all ranks, D]
  std::vector<float> gate_up;               // EarlyProducts: gate x, then up x.
  kernels::AlignedBuffer gathered_weights;  // Packed weights of all ranks.
  std::vector<float> reduced;               // [own rows, D]
  std::vector<uint64_t> element_offsets;    // RowSplit::offsets times D.
  std::vector<uint32_t> listed_rows;        // Result of ListRows.
  std::vector<uint32_t> assigned_rows;      // Rows, by AssignRows.
  std::vector<float> assigned_weights;      // Router weights, by AssignRows.
  std::vector<size_t> first_assigned;       // [experts + 1], by AssignRows.
  std::vector<char> chosen_experts;         // [held replicas] 1: has tokens.
  std::vector<char> own_routes;             // RouteRecords of own rows.
};

// The rows of all data groups in one pass over the layers. Rows count from 0,
// in the order of data groups.
struct GroupRows {
  std::vector<uint64_t> offsets;  // [groups + 1] bounds of the groups' rows.
  int group = 0;                  // This rank's data group.

  // Number of rows of all groups; first row and number of rows of this group.

  size_t all() const { return offsets.back(); }
  size_t begin() const { return offsets[group]; }
  size_t own() const { return offsets[group + 1] - offsets[group]; }
};

// Everything a layer works with in one pass. Belongs to the executor's thread.
struct LayerContext {
  const cluster::ModelSpec& spec;
  const cluster::ShardPlan& plan;                // This rank's plan.
  const std::vector<cluster::ShardPlan>& plans;  // By rank in the world.
  const cluster::ExpertLayout& layout;
  const kernels::Rope& rope;
  float softmax_scale;
  kernels::ThreadPool& pool;
  KvCache& cache;
  TimedCommunicator& communicator;  // Spans the ranks of the data group.
  TimedCommunicator* data_axis;     // Spans data groups; null: there is one.
  const GroupRows& group_rows;
  cluster::Wire wire;
  const TunedTiles& tiles;
  size_t fuse_rows;        // ModelSettings::fuse_rows.
  double expert_capacity;  // ModelSettings::expert_capacity.
  bool reproducible;       // ModelSettings::reproducible.
  Workspace& workspace;
  cluster::TraceRecorder* trace = nullptr;  // May be null.
  // Hash of all experts that were chosen so far in this step, and of the loads
  // of coordinates. The hash travels with the next reduction. The reduction
  // fails if the hashes of two ranks differ.
  uint64_t routing_hash = 0;
  // Number of tokens per [layer][expert]; null: not counted.
  std::vector<std::vector<uint64_t>>* expert_counts = nullptr;
  // Number of routes per [layer] that ExpertDispatch::LimitRoutes dropped;
  // null: not counted.
  std::vector<uint64_t>* dropped_counts = nullptr;
  // Bytes of weights and cache that the layers needed (StepResult.bytes_read).
  uint64_t bytes_read = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_LAYER_CONTEXT_H_
