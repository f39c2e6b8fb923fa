// SPDX-License-Identifier: Apache-2.0
// What every layer of a rank's model works with.
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

// Tokens on their way between data groups (expert_exchange.h).
struct RowExchange {
  std::vector<size_t> route_ends;       // By group, of all groups' routes.
  std::vector<uint32_t> sent_rows;      // Own ones, group by group.
  std::vector<uint32_t> received_rows;  // Of all groups' rows.
  std::vector<uint64_t> sent_ends;      // By group, from 0 on.
  std::vector<uint64_t> received_ends;
  std::vector<uint64_t> from;  // The two in bytes or elements.
  std::vector<uint64_t> to;
  std::vector<char> sent;
  std::vector<char> received;
  std::vector<float> returned;    // [sent rows, D]
  kernels::Activations x;         // Own rows and received ones.
  std::vector<int32_t> replicas;  // Of these.
  std::vector<float> weights;
};

// Buffers that grow to the largest step seen and are used again, so that a
// decode step allocates nothing once it has run.
struct Workspace {
  std::vector<float> residual;      // [rows, D], or of this rank's rows.
  RowSplit split;                   // Rows by rank, where they are split.
  std::vector<float> normed;        // [rows, D]
  kernels::Activations x;           // [rows, D]: `normed`, for products.
  std::vector<float> partial;       // [rows, D], this rank's summand.
  std::vector<float> q_latent;      // [rows, q_lora_rank]
  kernels::Activations q_latent_x;  // The same, for q_b.
  std::vector<float> q;             // [rows, heads, dn + dr], then rotated.
  std::vector<float> kv;            // [rows, kv_lora_rank + dr]
  std::vector<float> attended;      // [rows, heads, dv]
  kernels::Activations attended_x;  // The same, for o.
  std::vector<kernels::MlaSegment> segments;
  kernels::MlaWorkspace attention;
  kernels::SwigluWorkspace swiglu;
  std::vector<kernels::SwigluExpert> experts;  // That have tokens in a step.
  kernels::Activations router_x;               // [rows, D], float32.
  std::vector<float> route_logits;             // [rows, experts]
  std::vector<float> route_scratch;            // [3 * experts]
  std::vector<int32_t> route_ids;              // [rows, num_experts_per_tok]
  std::vector<float> route_weights;            // [rows, num_experts_per_tok]
  ExpertDispatch dispatch;
  std::vector<int32_t> route_replicas;  // [rows, num_experts_per_tok], or -1.
  RowExchange exchange;
  Batch own_batch;                  // This rank's rows of a step.
  kernels::Activations gathered_x;  // Of all ranks' rows.
  std::vector<float> gate_up;       // EarlyProducts, one after the other.
  kernels::AlignedBuffer gathered_weights;  // Of all ranks, packed.
  std::vector<float> reduced;               // [own rows, D]
  std::vector<uint64_t> element_offsets;    // Of each rank's rows, times D.
  std::vector<uint32_t> listed_rows;        // Of a network for all tokens.
  std::vector<uint32_t> assigned_rows;      // By expert, ascending.
  std::vector<float> assigned_weights;      // Of the same.
  std::vector<size_t> first_assigned;       // [experts + 1]
  std::vector<char> chosen_experts;         // By any token, [own experts].
  std::vector<char> own_routes;             // That travel with own rows.
};

// How the tokens of one pass over the layers are spread over data groups.
struct GroupRows {
  std::vector<uint64_t> offsets;  // [groups + 1] of all groups' rows.
  int group = 0;                  // This rank's.

  size_t all() const { return offsets.back(); }
  size_t begin() const { return offsets[group]; }
  size_t own() const { return offsets[group + 1] - offsets[group]; }
};

struct LayerContext {
  const cluster::ModelSpec& spec;
  const cluster::ShardPlan& plan;
  const std::vector<cluster::ShardPlan>& plans;  // Of all ranks.
  const cluster::ExpertLayout& layout;
  const kernels::Rope& rope;
  float softmax_scale;
  kernels::ThreadPool& pool;
  KvCache& cache;
  TimedCommunicator& communicator;  // Of the data group.
  TimedCommunicator* data_axis;     // Null where there is one data group.
  const GroupRows& group_rows;
  cluster::Wire wire;
  const TunedTiles& tiles;
  size_t fuse_rows;  // This and the next as in ModelSettings.
  double expert_capacity;
  Workspace& workspace;
  cluster::TraceRecorder* trace = nullptr;  // Or null.
  // Hash of all experts chosen in this step so far, and of where they are: it
  // travels with the next reduction, so that ranks that differ are found out at
  // once.
  uint64_t routing_hash = 0;
  // Exact tokens per [layer][expert]; null: not counted.
  std::vector<std::vector<uint64_t>>* expert_counts = nullptr;
  // Of these, by layer: beyond the capacity of places.
  std::vector<uint64_t>* dropped_counts = nullptr;
  // Of weights and cache that the layers needed so far (StepResult.bytes_read).
  uint64_t bytes_read = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_LAYER_CONTEXT_H_
