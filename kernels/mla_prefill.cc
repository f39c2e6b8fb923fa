// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla_prefill.h"

#include <algorithm>
#include <cstdint>
#include <numbers>

#include "kernels/mla_block.h"
#include "kernels/mla_task.h"

namespace ringfleet::kernels {
namespace {

struct Work {
  const MlaExpandedBlock& block;
  const MlaKernels* kernels = nullptr;
  // Of every head and group of kMaxLanes queries: maxima, then sums.
  float* statistics = nullptr;

  size_t expanded_dim() const {
    return block.args->nope_dim + block.args->v_dim;
  }
  size_t groups() const {
    return (block.segment->num_queries + kMaxLanes - 1) / kMaxLanes;
  }
  int64_t position(size_t query) const {
    return block.segment->first_position + static_cast<int64_t>(query);
  }
};

// Brings keys and values of one head into the kernels' form.
void PackHead(const Work& work, size_t head, const MlaScratch& scratch,
              MlaBlock* packed) {
  const MlaArgs& args = *work.block.args;
  const MlaKernels& kernels = *work.kernels;
  const size_t row = args.heads * work.expanded_dim();
  const float* keys = work.block.expanded + head * work.expanded_dim();
  const float* values = keys + args.nope_dim;
  if (kernels.pack_values != nullptr) {
    kernels.convert_rows(values, row, work.block.positions, args.v_dim,
                         /*pad=*/0, scratch.rows, scratch.stride_bytes);
    kernels.pack_values(scratch.rows, scratch.stride_bytes,
                        work.block.positions, args.v_dim, scratch.values);
    packed->packed_positions = work.block.positions;
  } else {
    packed->value_stride_bytes =
        PaddedNumbers(args.v_dim) * kernels.element_bytes;
    kernels.convert_rows(values, row, work.block.positions, args.v_dim,
                         /*pad=*/0, scratch.values, packed->value_stride_bytes);
  }
  packed->values = scratch.values;
  kernels.convert_rows(keys, row, work.block.positions, args.nope_dim,
                       /*pad=*/0, scratch.rows, scratch.stride_bytes);
  kernels.convert_rows(
      work.block.latents + args.format.kv_lora_rank, args.format.numbers(),
      work.block.positions, args.format.rope_dim, /*pad=*/packed->key_dim % 2,
      static_cast<char*>(scratch.rows) + args.nope_dim * kernels.element_bytes,
      scratch.stride_bytes);
  packed->keys = scratch.rows;
  packed->key_stride_bytes = scratch.stride_bytes;
}

// Attends with queries [begin, end) of one head, at most kMaxLanes.
void AttendGroup(const Work& work, size_t head, size_t begin, size_t end,
                 const MlaScratch& scratch, MlaBlock packed) {
  const MlaArgs& args = *work.block.args;
  const int64_t last_position = work.position(end - 1);
  packed.positions = VisibleInBlock(last_position, work.block.index);
  if (packed.positions == 0) return;
  packed.lanes = end - begin;
  int32_t visible[kMaxLanes] = {};
  for (size_t i = 0; i < packed.lanes; ++i) {
    visible[i] = static_cast<int32_t>(
        VisibleInBlock(work.position(begin + i), work.block.index));
  }
  if (static_cast<size_t>(visible[0]) < packed.positions) {
    packed.visible = visible;
  }
  const size_t row = work.block.segment->first_row + begin;
  work.kernels->pack_queries(
      args.q + (row * args.heads + head) * packed.key_dim,
      args.heads * packed.key_dim, packed.lanes, packed.key_dim,
      scratch.queries);
  packed.first = work.block.index == 0;
  packed.last = VisibleInBlock(last_position, work.block.index + 1) == 0;
  packed.max = work.statistics +
               (head * work.groups() + begin / kMaxLanes) * 2 * kMaxLanes;
  packed.sum = packed.max + kMaxLanes;
  packed.out = args.out + (row * args.heads + head) * args.v_dim;
  work.kernels->attend(packed);
}

// Groups [begin, end) of the queries of one head.
void AttendHead(const Work& work, size_t head, size_t begin, size_t end,
                const MlaScratch& scratch) {
  const MlaArgs& args = *work.block.args;
  MlaBlock packed = {
      .key_dim = args.nope_dim + args.format.rope_dim,
      .value_dim = args.v_dim,
      .queries = scratch.queries,
      .score_scale = args.softmax_scale * std::numbers::log2e_v<float>,
      .out_stride = args.heads * args.v_dim,
      .scores = scratch.scores,
      .weights = scratch.weights};
  PackHead(work, head, scratch, &packed);
  for (size_t group = begin; group < end; ++group) {
    AttendGroup(
        work, head, group * kMaxLanes,
        std::min((group + 1) * kMaxLanes, work.block.segment->num_queries),
        scratch, packed);
  }
}

}  // namespace

void MlaAttendExpanded(const MlaExpandedBlock& block, MlaWorkspace& workspace,
                       ThreadPool& pool) {
  const MlaArgs& args = *block.args;
  const MlaKernels& kernels = MlaKernelsFor(args.format.dtype);
  Work work = {.block = block, .kernels = &kernels};
  const size_t groups = work.groups();
  work.statistics =
      GrowTo<float>(workspace.statistics, args.heads * groups * 2 * kMaxLanes);
  // Few heads are cut into pieces, so that they still use many threads.
  const size_t threads = static_cast<size_t>(pool.threads());
  const size_t pieces =
      std::min(groups, (2 * threads + args.heads - 1) / args.heads);
  ForEachMlaTask(kernels, args.nope_dim + args.format.rope_dim, args.v_dim,
                 args.heads * pieces, workspace, pool,
                 [&](size_t task, const MlaScratch& scratch) {
                   const size_t piece = task % pieces;
                   AttendHead(work, task / pieces, piece * groups / pieces,
                              (piece + 1) * groups / pieces, scratch);
                 });
}

}  // namespace ringfleet::kernels
