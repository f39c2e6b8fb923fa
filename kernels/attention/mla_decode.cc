// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/mla_decode.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/attention/mla_block.h"
#include "kernels/attention/mla_task.h"
#include "kernels/check.h"

namespace ringfleet::kernels {

// One part of the context of one query, for a group of heads.
struct MlaDecodeTask {
  const MlaSpan* span = nullptr;
  int64_t position = 0;  // The query's.
  size_t row = 0;
  size_t first_head = 0;
  size_t lanes = 0;
  size_t first_block = 0;
  size_t end_block = 0;
  // Null: the only part, whose result is the query's.
  float* partial = nullptr;
};

MlaWorkspace::MlaWorkspace() = default;
MlaWorkspace::~MlaWorkspace() = default;

namespace {

// A part is at least 1024 positions, which V3's 128 heads attend to in about
// 1 ms on one core, and a context has 32 parts at most: they are longer beyond
// 32768 positions.
constexpr size_t kMinPartBlocks = 8;
constexpr size_t kMaxParts = 32;

// Results of parts that wait to be merged. One query of V3 takes 263 KB a part.
constexpr size_t kMaxPartialBytes = size_t{32} << 20;

// How one query's context is cut; depends on its position only.
struct Parts {
  explicit Parts(int64_t position) {
    blocks = static_cast<size_t>(position) / kCacheBlockPositions + 1;
    while (part_blocks * kMaxParts < blocks) part_blocks *= 2;
    count = (blocks + part_blocks - 1) / part_blocks;
  }
  size_t blocks = 0;
  size_t part_blocks = kMinPartBlocks;
  size_t count = 0;
};

// Floats of one part's results: sums [heads, kv_lora_rank], then maxima and
// sums of probabilities [heads] each.
size_t PartialFloats(const MlaDecodeArgs& args) {
  return args.heads * (args.format.kv_lora_rank + 2);
}

void RunTask(const MlaDecodeArgs& args, const MlaKernels& kernels,
             const MlaDecodeTask& task, const MlaScratch& scratch) {
  const size_t rank = args.format.kv_lora_rank;
  const size_t numbers = args.format.numbers();
  const bool reads_cache = kernels.reads_cache(args.format);
  float max[kMaxLanes];
  float sum[kMaxLanes];
  kernels.pack_queries(
      args.q + (task.row * args.heads + task.first_head) * numbers, numbers,
      task.lanes, numbers, scratch.queries);
  MlaBlock block = {
      .lanes = task.lanes,
      .key_dim = numbers,
      .value_dim = rank,
      .queries = scratch.queries,
      .score_scale = args.softmax_scale * std::numbers::log2e_v<float>,
      .max = max,
      .sum = sum,
      .out = task.partial == nullptr
                 ? args.out + (task.row * args.heads + task.first_head) * rank
                 : task.partial + task.first_head * rank,
      .out_stride = rank,
      .scores = scratch.scores,
      .probabilities = scratch.probabilities};
  for (size_t b = task.first_block; b < task.end_block; ++b) {
    block.positions = VisibleInBlock(task.position, b);
    block.keys = task.span->blocks[b];
    block.key_stride_bytes = args.format.bytes();
    if (!reads_cache) {
      kernels.load_rows(args.format, task.span->blocks[b], block.positions,
                        scratch.rows, scratch.stride_bytes);
      block.keys = scratch.rows;
      block.key_stride_bytes = scratch.stride_bytes;
    }
    block.values = block.keys;
    block.value_stride_bytes = block.key_stride_bytes;
    if (kernels.pack_values != nullptr) {
      kernels.pack_values(block.keys, block.key_stride_bytes, block.positions,
                          rank, scratch.values);
      block.values = scratch.values;
      block.packed_positions = block.positions;
    }
    const bool end = b + 1 == task.end_block;
    block.next = end ? nullptr : task.span->blocks[b + 1];
    block.next_bytes =
        end ? 0 : VisibleInBlock(task.position, b + 1) * args.format.bytes();
    block.first = b == task.first_block;
    block.last = end && task.partial == nullptr;
    kernels.attend(block);
  }
  if (task.partial != nullptr) {
    float* maxima = task.partial + args.heads * rank + task.first_head;
    std::copy_n(max, task.lanes, maxima);
    std::copy_n(sum, task.lanes, maxima + args.heads);
  }
}

// The result of one query and head from those of its parts.
void MergeParts(const MlaDecodeArgs& args, const float* partials, size_t parts,
                size_t head, float* __restrict out) {
  const size_t rank = args.format.kv_lora_rank;
  const size_t stride = PartialFloats(args);
  const float* maxima = partials + args.heads * rank + head;
  const float* sums = maxima + args.heads;
  float max = maxima[0];
  for (size_t i = 1; i < parts; ++i) max = std::max(max, maxima[i * stride]);
  float factors[kMaxParts];
  float sum = 0;
  for (size_t i = 0; i < parts; ++i) {
    factors[i] = std::exp2(maxima[i * stride] - max);
    sum += sums[i * stride] * factors[i];
  }
  std::fill_n(out, rank, 0.0f);
  for (size_t i = 0; i < parts; ++i) {
    const float factor = factors[i] / sum;
    const float* part = partials + i * stride + head * rank;
    for (size_t c = 0; c < rank; ++c) out[c] += part[c] * factor;
  }
}

// Heads of a task: as many as lanes, fewer where threads would be idle.
size_t HeadsPerTask(size_t heads, size_t parts, size_t threads) {
  size_t lanes = kMaxLanes;
  while (lanes > kLaneGroup &&
         parts * ((heads + lanes - 1) / lanes) < threads) {
    lanes /= 2;
  }
  return lanes;
}

// Calls body(span, query) for the queries from number `first` on until it
// returns false; returns the number of the query that it was false for.
template <typename Body>
size_t ForEachQuery(absl::Span<const MlaSpan> spans, size_t first,
                    const Body& body) {
  size_t number = 0;
  for (const MlaSpan& span : spans) {
    const size_t skipped = std::min(first - number, span.num_queries);
    number += skipped;
    for (size_t i = skipped; i < span.num_queries; ++i) {
      if (!body(span, i)) return number;
      first = ++number;
    }
  }
  return number;
}

int64_t Position(const MlaSpan& span, size_t query) {
  return span.first_position + static_cast<int64_t>(query);
}

// Makes the tasks of queries from number `first` on, as many as the memory for
// partial results allows but at least one; returns the number of the next.
size_t MakeTasks(const MlaDecodeArgs& args, size_t first, size_t threads,
                 MlaWorkspace& workspace) {
  size_t num_parts = 0;
  size_t partial_floats = 0;
  const size_t end =
      ForEachQuery(args.spans, first, [&](const MlaSpan& span, size_t query) {
        const size_t parts = Parts(Position(span, query)).count;
        const size_t floats = parts > 1 ? parts * PartialFloats(args) : 0;
        if (num_parts > 0 &&
            (partial_floats + floats) * sizeof(float) > kMaxPartialBytes) {
          return false;
        }
        num_parts += parts;
        partial_floats += floats;
        return true;
      });
  const size_t lanes = HeadsPerTask(args.heads, num_parts, threads);
  float* partial = GrowTo<float>(workspace.partials, partial_floats);
  size_t number = first;
  workspace.tasks.clear();
  ForEachQuery(args.spans, first, [&](const MlaSpan& span, size_t query) {
    if (number++ == end) return false;
    const int64_t position = Position(span, query);
    const Parts parts(position);
    for (size_t part = 0; part < parts.count; ++part) {
      const size_t begin = part * parts.part_blocks;
      for (size_t head = 0; head < args.heads; head += lanes) {
        workspace.tasks.push_back(
            {.span = &span,
             .position = position,
             .row = span.first_row + query,
             .first_head = head,
             .lanes = std::min(lanes, args.heads - head),
             .first_block = begin,
             .end_block = std::min(begin + parts.part_blocks, parts.blocks),
             .partial = parts.count > 1 ? partial : nullptr});
      }
      if (parts.count > 1) partial += PartialFloats(args);
    }
    return true;
  });
  return end;
}

}  // namespace

void MlaDecode(const MlaDecodeArgs& args, MlaWorkspace& workspace,
               ThreadPool& pool) {
  if (args.heads == 0) return;
  size_t num_queries = 0;
  for (const MlaSpan& span : args.spans) {
    if (span.num_queries == 0) continue;
    RF_CHECK(span.first_position >= 0);
    RF_CHECK(Parts(Position(span, span.num_queries - 1)).blocks <=
             span.blocks.size());
    num_queries += span.num_queries;
  }
  const MlaKernels& kernels = MlaKernelsFor(args.format.dtype);
  const size_t threads = static_cast<size_t>(pool.threads());
  for (size_t next = 0; next < num_queries;) {
    next = MakeTasks(args, next, threads, workspace);
    const std::vector<MlaDecodeTask>& tasks = workspace.tasks;
    ForEachMlaTask(kernels,
                   {.key_dim = args.format.numbers(),
                    .value_dim = args.format.kv_lora_rank},
                   tasks.size(), workspace, pool,
                   [&](size_t i, const MlaScratch& scratch) {
                     RunTask(args, kernels, tasks[i], scratch);
                   });
    const auto merges = [](const MlaDecodeTask& task) {
      return task.partial != nullptr && task.first_block == 0;
    };
    if (std::none_of(tasks.begin(), tasks.end(), merges)) continue;
    pool.ParallelFor(tasks.size(), /*grain=*/1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const MlaDecodeTask& task = tasks[i];
        if (!merges(task)) continue;
        for (size_t h = 0; h < task.lanes; ++h) {
          const size_t head = task.first_head + h;
          MergeParts(args, task.partial, Parts(task.position).count, head,
                     args.out + (task.row * args.heads + head) *
                                    args.format.kv_lora_rank);
        }
      }
    });
  }
}

}  // namespace ringfleet::kernels
