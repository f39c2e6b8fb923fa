// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/mla_prefill.h"

#include <algorithm>
#include <cstdint>
#include <numbers>

#include "kernels/attention/mla_block.h"
#include "kernels/attention/mla_task.h"

namespace ringfleet::kernels {
namespace {

struct Work {
  const MlaExpandedPart& part;
  const MlaKernels* kernels = nullptr;
  // Maxima, then sums, for every head and group of kMaxLanes queries.
  float* statistics = nullptr;

  size_t expanded_dim() const { return part.args->nope_dim + part.args->v_dim; }
  size_t groups() const {
    return (part.span->num_queries + kMaxLanes - 1) / kMaxLanes;
  }
  size_t blocks() const {
    return (part.positions + kCacheBlockPositions - 1) / kCacheBlockPositions;
  }
  // Returns the positions of block `index` of the part.
  size_t positions(size_t index) const {
    return std::min(part.positions - index * kCacheBlockPositions,
                    kCacheBlockPositions);
  }
  int64_t position(size_t query) const {
    return part.span->first_position + static_cast<int64_t>(query);
  }
};

// Brings keys and values of one head of the part, in block `index`, into the
// kernels' form.
void PackHead(const Work& work, size_t head, size_t index,
              const MlaScratch& scratch, MlaBlock* packed) {
  const MlaArgs& args = *work.part.args;
  const MlaKernels& kernels = *work.kernels;
  const size_t row = work.part.heads * work.expanded_dim();
  const size_t first = index * kCacheBlockPositions;
  const size_t positions = work.positions(index);
  const float* keys =
      work.part.expanded + first * row + head * work.expanded_dim();
  const float* values = keys + args.nope_dim;
  void* const packed_values = scratch.Values(index);
  void* const rows = scratch.Rows(index);
  if (kernels.pack_values != nullptr) {
    kernels.convert_rows(values, row, positions, args.v_dim, /*pad=*/0, rows,
                         scratch.stride_bytes);
    kernels.pack_values(rows, scratch.stride_bytes, positions, args.v_dim,
                        packed_values);
    packed->packed_positions = positions;
  } else {
    packed->value_stride_bytes =
        PaddedNumbers(args.v_dim) * kernels.element_bytes;
    kernels.convert_rows(values, row, positions, args.v_dim, /*pad=*/0,
                         packed_values, packed->value_stride_bytes);
  }
  packed->values = packed_values;
  kernels.convert_rows(keys, row, positions, args.nope_dim, /*pad=*/0, rows,
                       scratch.stride_bytes);
  kernels.convert_rows(
      work.part.latents + first * args.format.numbers() +
          args.format.kv_lora_rank,
      args.format.numbers(), positions, args.format.rope_dim,
      /*pad=*/packed->key_dim % 2,
      static_cast<char*>(rows) + args.nope_dim * kernels.element_bytes,
      scratch.stride_bytes);
  packed->keys = rows;
  packed->key_stride_bytes = scratch.stride_bytes;
}

// Attends to block `index` with queries [begin, end) of one head, at most
// kMaxLanes, which are packed already.
void AttendBlock(const Work& work, size_t index, size_t begin, size_t end,
                 MlaBlock packed) {
  const int64_t last_position = work.position(end - 1);
  const size_t block = work.part.first_block + index;
  packed.positions = VisibleInBlock(last_position, block);
  if (packed.positions == 0) return;
  int32_t visible[kMaxLanes] = {};
  for (size_t i = 0; i < packed.lanes; ++i) {
    visible[i] =
        static_cast<int32_t>(VisibleInBlock(work.position(begin + i), block));
  }
  if (static_cast<size_t>(visible[0]) < packed.positions) {
    packed.visible = visible;
  }
  packed.first = block == 0;
  packed.last = VisibleInBlock(last_position, block + 1) == 0;
  work.kernels->attend(packed);
}

// Groups [begin, end) of the queries of one head of the part.
void AttendHead(const Work& work, size_t head, size_t begin, size_t end,
                const MlaScratch& scratch) {
  const MlaArgs& args = *work.part.args;
  const size_t key_dim = args.nope_dim + args.format.rope_dim;
  const size_t own_head = work.part.first_head + head;
  MlaBlock packed[kExpandedBlocks];
  for (size_t index = 0; index < work.blocks(); ++index) {
    packed[index] = {
        .key_dim = key_dim,
        .value_dim = args.v_dim,
        .queries = scratch.queries,
        .score_scale = args.softmax_scale * std::numbers::log2e_v<float>,
        .out_stride = args.heads * args.v_dim,
        .scores = scratch.scores,
        .probabilities = scratch.probabilities};
    PackHead(work, head, index, scratch, &packed[index]);
  }
  for (size_t group = begin; group < end; ++group) {
    const size_t first = group * kMaxLanes;
    const size_t last =
        std::min(first + kMaxLanes, work.part.span->num_queries);
    if (VisibleInBlock(work.position(last - 1), work.part.first_block) == 0) {
      continue;
    }
    const size_t row = work.part.span->first_row + first;
    work.kernels->pack_queries(args.q + (row * args.heads + own_head) * key_dim,
                               args.heads * key_dim, last - first, key_dim,
                               scratch.queries);
    float* const max =
        work.statistics + (own_head * work.groups() + group) * 2 * kMaxLanes;
    for (size_t index = 0; index < work.blocks(); ++index) {
      packed[index].lanes = last - first;
      packed[index].max = max;
      packed[index].sum = max + kMaxLanes;
      packed[index].out = args.out + (row * args.heads + own_head) * args.v_dim;
      AttendBlock(work, index, first, last, packed[index]);
    }
  }
}

}  // namespace

void MlaAttendExpanded(const MlaExpandedPart& part, MlaWorkspace& workspace,
                       ThreadPool& pool) {
  const MlaArgs& args = *part.args;
  const MlaKernels& kernels = MlaKernelsFor(args.format.dtype);
  Work work = {.part = part, .kernels = &kernels};
  const size_t groups = work.groups();
  work.statistics =
      GrowTo<float>(workspace.statistics, args.heads * groups * 2 * kMaxLanes);
  // Few heads are cut into pieces, so that they still use many threads.
  const size_t threads = static_cast<size_t>(pool.threads());
  const size_t pieces =
      std::min(groups, (2 * threads + part.heads - 1) / part.heads);
  ForEachMlaTask(kernels,
                 {.key_dim = args.nope_dim + args.format.rope_dim,
                  .value_dim = args.v_dim,
                  .blocks = kExpandedBlocks},
                 part.heads * pieces, workspace, pool,
                 [&](size_t task, const MlaScratch& scratch) {
                   const size_t piece = task % pieces;
                   AttendHead(work, task / pieces, piece * groups / pieces,
                              (piece + 1) * groups / pieces, scratch);
                 });
}

}  // namespace ringfleet::kernels
