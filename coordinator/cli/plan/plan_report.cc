// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/plan/plan_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/model/dtype_names.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/published_sizes.h"
#include "cluster/model/shard_sizes.h"
#include "coordinator/cli/table.h"
#include "kernels/dtype.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::HostSpec;
using cluster::MeshShape;

Json MeshJson(const MeshShape& mesh) {
  return {
      {"data", mesh.data}, {"expert", mesh.expert}, {"tensor", mesh.tensor}};
}

std::string MeshText(const MeshShape& mesh) {
  return absl::StrCat("data ", mesh.data, " x expert ", mesh.expert,
                      " x tensor ", mesh.tensor);
}

Json HostJson(const HostSpec& host, const RankMemory& rank) {
  Json weights;
  for (int i = 0; i < cluster::kNumWeightClasses; ++i) {
    weights[std::string(cluster::WeightClassName(
        static_cast<cluster::WeightClass>(i)))] = rank.weights.bytes[i];
  }
  return {{"name", host.name},
          {"memory_bytes", host.memory_bytes},
          {"weights", weights},
          {"weight_bytes", rank.weights.total()},
          {"cache_bytes", rank.cache_bytes},
          {"buffer_bytes", rank.buffer_bytes},
          {"free_bytes", rank.free_bytes},
          {"read_gbps", host.read_bytes_per_second * 1e-9},
          {"int8_gops", host.int8_ops_per_second * 1e-9},
          {"threads", host.threads}};
}

// Milliseconds of a step.
Json StepJson(const StepCost& cost) {
  return {{"attention_ms", cost.attention * 1e3},
          {"feed_forward_ms", cost.feed_forward * 1e3},
          {"head_ms", cost.head * 1e3},
          {"exchange_ms", cost.exchange * 1e3},
          {"overhead_ms", cost.overhead * 1e3},
          {"total_ms", cost.seconds() * 1e3}};
}

Json CandidateJson(const Candidate& candidate) {
  return {{"name", candidate.strategy.Name()},
          {"mesh", MeshJson(candidate.strategy.mesh)},
          {"fits", candidate.fits},
          {"runnable", candidate.runnable},
          {"decode_tps", candidate.decode_tps},
          {"prefill_tps", candidate.prefill_tps},
          {"why_not", candidate.why_not}};
}

Json CellJson(const TableCell& cell) {
  return {{"hosts", cell.hosts},
          {"batch", cell.batch},
          {"context", cell.context},
          {"fits", cell.fits},
          {"runnable", cell.runnable},
          {"mesh", MeshJson(cell.mesh)},
          {"decode_tps", cell.fits ? cell.decode_tps : 0},
          {"prefill_tps", cell.fits ? cell.prefill_tps : 0}};
}

std::string GibText(uint64_t bytes) {
  return absl::StrFormat("%.2f", static_cast<double>(bytes) / 1073741824.0);
}

void AppendMemory(const PlanInput& input, const Candidate& choice,
                  std::string* out) {
  std::vector<TableColumn> columns = {{"host"}};
  for (int i = 0; i < cluster::kNumWeightClasses; ++i) {
    columns.push_back({std::string(
        cluster::WeightClassName(static_cast<cluster::WeightClass>(i)))});
  }
  for (const char* name : {"weights", "cache", "buffers", "free"}) {
    columns.push_back({name});
  }
  Table table(std::move(columns));
  for (size_t rank = 0; rank < choice.ranks.size(); ++rank) {
    const RankMemory& memory = choice.ranks[rank];
    std::vector<std::string> cells = {input.request.inputs.hosts[rank].name};
    for (const uint64_t bytes : memory.weights.bytes) {
      cells.push_back(GibText(bytes));
    }
    cells.push_back(GibText(memory.weights.total()));
    cells.push_back(GibText(memory.cache_bytes));
    cells.push_back(GibText(memory.buffer_bytes));
    cells.push_back(GibText(memory.free_bytes));
    table.Add(cells);
  }
  absl::StrAppend(out, "\nMemory of each host, GiB:\n\n", table.text());
}

std::string StepText(const StepCost& cost) {
  return absl::StrFormat(
      "%.2f ms: attention %.2f, feed-forward %.2f, head %.2f, exchanges %.2f, "
      "the rest %.2f.",
      cost.seconds() * 1e3, cost.attention * 1e3, cost.feed_forward * 1e3,
      cost.head * 1e3, cost.exchange * 1e3, cost.overhead * 1e3);
}

void AppendSteps(const PlanInput& input, const Candidate& choice,
                 std::string* out) {
  const PlanRequest& request = input.request;
  const StepCost& decode = choice.decode;
  const double batch = static_cast<double>(request.batch);
  absl::StrAppendFormat(
      out,
      "\nOne decode step: %s\nEach token needs %.2f GB from memory (all "
      "hosts), %.1f KB sent by each host, %d all-reduces.\nThe first %d tokens "
      "of a prompt: %s\n",
      StepText(decode), decode.bytes_read / batch * 1e-9,
      decode.wire_bytes / batch * 1e-3, decode.collectives,
      std::min(request.context, request.prefill_chunk),
      StepText(choice.prompt));
}

void AppendAlternatives(const std::vector<Candidate>& alternatives,
                        std::string* out) {
  if (alternatives.empty()) return;
  Table table({{"alternative"}, {"decode t/s"}, {"prefill t/s"}, {"why not"}});
  for (const Candidate& candidate : alternatives) {
    table.Add({candidate.strategy.Name(),
               absl::StrFormat("%.2f", candidate.decode_tps),
               absl::StrFormat("%.1f", candidate.prefill_tps),
               candidate.why_not});
  }
  absl::StrAppend(out, "\n", table.text());
}

// One line for each number of hosts and batch, one column for each context.
void AppendTable(const std::vector<TableCell>& cells, std::string* out) {
  std::vector<TableColumn> columns = {{"hosts"}, {"batch"}};
  size_t contexts = 0;
  while (contexts < cells.size() && cells[contexts].hosts == cells[0].hosts &&
         cells[contexts].batch == cells[0].batch) {
    columns.push_back({absl::StrCat(cells[contexts++].context)});
  }
  Table table(std::move(columns));
  std::vector<std::string> row;
  for (const TableCell& cell : cells) {
    if (row.empty()) row = {absl::StrCat(cell.hosts), absl::StrCat(cell.batch)};
    row.push_back(cell.fits ? absl::StrFormat("%.1f, %.0f%s", cell.decode_tps,
                                              cell.prefill_tps,
                                              cell.runnable ? "" : " *")
                            : "-");
    if (row.size() < contexts + 2) continue;
    table.Add(row);
    row.clear();
  }
  absl::StrAppend(
      out,
      "\nTokens/s of decode and prefill. Rows: hosts like the smallest of "
      "these, "
      "and sequences\nthat run together. Columns: cached positions of each "
      "sequence. -: does not fit.\n*: more workers than this program runs.\n\n",
      table.text());
}

constexpr char kModelText[] = R"(
How times are predicted. Ranks wait for each other in each half of a layer, so
each half takes as long as on its slowest host:
  product    of measured hosts: what int8 weights took in products of 1 to 512
             rows, on straight lines between these; other forms read their own
             bytes and multiply at their own rate. Else bytes / read rate and
             operations / rate overlap as the fourth root of the sum of their
             fourth powers; the read rate is the host's, at most 18 GB/s a thread.
             Results cross the memory twice more
  rate       of hosts that were not measured: int8 as given; int4 0.76, bf16 0.21,
             f32 0.235 of it; for r rows 1.02 r / (r + 3) of that up to 128 rows,
             0.72 from 512 rows on
  experts    a step of B tokens reads E (1 - (1 - k/E)^B) of E experts, evenly
             chosen; the busiest of y expert groups the mean of the largest of y
             binomial numbers; half of them have a standard deviation more tokens
             than the mean, half so many fewer
  attention  as measured, over cached latents with 128 and with 16 heads, the
             time of a position on a line between and beyond these, over a cache
             of f32 at the rate of f32 weights; else 0.49 h / (h + 8) of the int8
             rate over latents for h heads a rank, 0.31 over expanded keys and
             values. The cache is read once a step by every rank, and is
             replicated; queries and sums in the latents' space cross the memory
             five times
  exchange   (latency + 15 us) a message, 8 us for each further one, bytes at the
             network's rate or 0.4 ns each in software; one shot, two shots or a
             ring as the default table chooses
  prompts    from 32 tokens a rank on each rank has its share of the tokens
             between blocks: latents and router for these only, four exchanges
             of which what lasts longer than the product beside it counts, or
             what its software takes; else, and to generate, two all-reduces.
             Beside the second gather are gate and up of a dense layer or of the
             shared expert. Beside sums products are in a piece for each rank:
             the last feed-forward product of experts only where each has 16
             tokens of a piece. Waiting for other ranks takes 0.06 of the time of attention
             and feed-forward part
  the rest   0.1 ms a layer; 7.3 ns a logit of a sequence, divided over threads
Prompts go in steps of 512 tokens. Weights are split evenly over ranks whatever
their speed. Latents' products, router, norms and embedding are on every rank.
Other programs, uneven expert popularity and jitter of the network are not in it.
)";

}  // namespace

PlanResult ComputePlan(const PlanInput& input) {
  PlanResult result;
  result.plan = MakeFleetPlan(input.request);
  const int64_t most = input.request.inputs.spec.max_position_embeddings;
  std::vector<int64_t> contexts;
  for (const int64_t context : {2048, 8192, 32768}) {
    if (context <= most) contexts.push_back(context);
  }
  if (contexts.empty()) contexts.push_back(most);
  result.table = PlanTable(input.request, {1, 2, 4, 8, 16, 32, 64},
                           {1, 8, 32, 128}, contexts);
  return result;
}

Json PlanJson(const PlanInput& input, const PlanResult& result) {
  const CostInputs& inputs = input.request.inputs;
  const FleetPlan& plan = result.plan;
  const Candidate& choice = plan.choice;
  const double batch = static_cast<double>(input.request.batch);
  const cluster::CheckpointSizes sizes = cluster::PublishedSizes(inputs.spec);
  Json hosts = Json::array();
  for (size_t rank = 0; rank < choice.ranks.size(); ++rank) {
    hosts.push_back(HostJson(inputs.hosts[rank], choice.ranks[rank]));
  }
  Json alternatives = Json::array();
  for (const Candidate& candidate : plan.alternatives) {
    alternatives.push_back(CandidateJson(candidate));
  }
  Json table = Json::array();
  for (const TableCell& cell : result.table) table.push_back(CellJson(cell));
  Json needed;
  if (plan.hosts_needed.has_value()) {
    needed = {{"hosts", plan.hosts_needed->hosts},
              {"mesh", MeshJson(plan.hosts_needed->mesh)}};
  }
  return {{"fits", plan.fits},
          {"runnable", choice.runnable},
          {"model", input.model},
          {"parameters", cluster::CountParameters(inputs.spec)},
          {"mtp_parameters",
           sizes.parameters[static_cast<size_t>(cluster::WeightClass::kMtp)]},
          {"checkpoint_bytes", input.checkpoint_bytes},
          {"cache_bytes_per_token",
           cluster::CacheBytesPerPosition(inputs.spec, inputs.cache_dtype)},
          {"hosts", hosts},
          {"mesh", MeshJson(choice.strategy.mesh)},
          {"strategy", choice.strategy.Name()},
          {"decode_tps", plan.fits ? choice.decode_tps : 0},
          {"prefill_tps", plan.fits ? choice.prefill_tps : 0},
          {"bytes_per_token", choice.decode.bytes_read / batch},
          {"wire_bytes_per_token", choice.decode.wire_bytes / batch},
          {"collectives_per_token", choice.decode.collectives},
          {"max_context_x_batch", plan.max_positions},
          {"hosts_needed", needed},
          {"context", input.request.context},
          {"batch", input.request.batch},
          {"dtype", std::string(cluster::WeightDtypeName(input.dtype))},
          {"cache_type", std::string(kernels::DtypeName(inputs.cache_dtype))},
          {"wire", std::string(cluster::WireText(inputs.wire))},
          {"network_gbit", inputs.network.bytes_per_second * 8e-9},
          {"latency_us", inputs.network.latency_seconds * 1e6},
          {"step", StepJson(choice.decode)},
          {"prompt_step", StepJson(choice.prompt)},
          {"alternatives", alternatives},
          {"table", table},
          {"assumptions", JsonArray(input.assumptions)}};
}

std::string PlanMarkdown(const PlanInput& input, const PlanResult& result,
                         bool explain) {
  const CostInputs& inputs = input.request.inputs;
  const FleetPlan& plan = result.plan;
  const Candidate& choice = plan.choice;
  std::string out = absl::StrFormat(
      "%s: %.2f billion parameters, %.2f GB of files, %d bytes of %s cache a "
      "token\n%d hosts, %s weights, %d x %d positions: ",
      input.model,
      static_cast<double>(cluster::CountParameters(inputs.spec)) * 1e-9,
      static_cast<double>(input.checkpoint_bytes) * 1e-9,
      cluster::CacheBytesPerPosition(inputs.spec, inputs.cache_dtype),
      kernels::DtypeName(inputs.cache_dtype), inputs.hosts.size(),
      cluster::WeightDtypeName(input.dtype), input.request.batch,
      input.request.context);
  if (plan.fits) {
    absl::StrAppendFormat(
        &out,
        "fits, mesh %s\ndecode %.2f tokens/s (%d sequences together), prefill "
        "%.1f tokens/s; at most %d positions in all\n",
        MeshText(choice.strategy.mesh), choice.decode_tps, input.request.batch,
        choice.prefill_tps, plan.max_positions);
    if (!choice.runnable) {
      absl::StrAppend(&out, "but this program runs at most ",
                      cluster::kMaxGroupSize, " workers\n");
    }
  } else {
    absl::StrAppend(&out, "does not fit; ");
    if (plan.hosts_needed.has_value()) {
      absl::StrAppend(&out, plan.hosts_needed->hosts,
                      " such hosts would do, mesh ",
                      MeshText(plan.hosts_needed->mesh), "\n");
    } else {
      absl::StrAppend(&out, kMaxPlannedHosts,
                      " such hosts would not do either\n");
    }
  }
  AppendMemory(input, choice, &out);
  if (plan.fits) AppendSteps(input, choice, &out);
  AppendAlternatives(plan.alternatives, &out);
  AppendTable(result.table, &out);
  if (!input.assumptions.empty()) absl::StrAppend(&out, "\nAssumed:\n");
  for (const std::string& assumption : input.assumptions) {
    absl::StrAppend(&out, "- ", assumption, "\n");
  }
  if (explain) absl::StrAppend(&out, kModelText);
  return out;
}

}  // namespace ringfleet::coordinator::cli
