// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/experts/eplb.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/placement/placement.h"
#include "cluster/placement/placement_layout.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/experts/eplb_report.h"
#include "coordinator/cli/experts/expert_loads.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kEplbFooter[] = R"(
Chooses the experts that get copies and a GPU for each copy, so that all GPUs have
about the same load: the algorithm of DeepSeek's EPLB, bit for bit, with ties to the
lowest index. A GPU stands for any holder of slots, here a worker; a node is a set of
GPUs. --weights has the tokens of each expert, in any unit, as JSON: an array of
layers, each an array of its experts' loads, or the output of `ringfleet status
--experts --counts -o json`.

Slots are numbered GPU by GPU, --replicas / --gpus each. phy2log[layer][slot] is the
expert in a slot, log2phy[layer][expert] the slots of its copies, then -1, and
logcnt[layer][expert] the number of its copies.

--policy hierarchical keeps the copies of an expert, and all experts of a group, on
one node; its numbers must divide each other. global packs all copies onto all GPUs.
auto is hierarchical if --nodes divides --groups, else global.

For GPUs that differ, --gpu-slots gives the slots of each, or --gpu-memory splits the
slots in proportion. --gpu-speeds gives their speeds (memory bandwidth, in any unit).
A copy goes to the GPU whose load / speed is least with it. This placement is shown
beside the plain one, in JSON under "uneven". With equal GPUs both agree.

Example: two layers of four experts; in each layer one expert has half of the tokens

  echo '[[50,20,20,10],[20,50,10,20]]' > loads.json
  ringfleet eplb --weights loads.json --replicas 6 --gpus 2
  ringfleet eplb --weights loads.json --replicas 6 --gpus 2 --json
  ringfleet eplb --weights loads.json --replicas 6 --gpus 2 --gpu-slots 2,4 \
      --gpu-speeds 1,2

R1 on four nodes of eight GPUs, with a fleet's counts:

  ringfleet status --cluster cluster.yaml --experts --counts -o json > counts.json
  ringfleet eplb --weights counts.json --replicas 288 --groups 8 --nodes 4 --gpus 32
)";

struct EplbOptions {
  std::string weights;
  cluster::PlacementRequest request;
  std::string policy = "auto";
  std::string gpu_slots;
  std::string gpu_memory;
  std::string gpu_speeds;
  std::string format = "md";
};

// "1,1,0.5" of a flag.
absl::StatusOr<std::vector<double>> ParseGpuNumbers(absl::string_view flag,
                                                    absl::string_view text) {
  std::vector<double> numbers;
  if (text.empty()) return numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("usage: ", flag, " '", part.substr(0, 64),
                       "', want numbers as in 40,40,20, one for each GPU"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status SetGpuSlots(const EplbOptions& options,
                         cluster::PlacementRequest* request) {
  RF_ASSIGN_OR_RETURN(const std::vector<double> slots,
                      ParseGpuNumbers("--gpu-slots", options.gpu_slots));
  for (const double number : slots) {
    if (!(number >= 1 && number <= cluster::kMaxReplicas) ||
        number != static_cast<int>(number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("usage: --gpu-slots ", number,
                       ", want whole numbers, 1 to ", cluster::kMaxReplicas));
    }
    request->gpu_slots.push_back(static_cast<int>(number));
  }
  RF_ASSIGN_OR_RETURN(const std::vector<double> memory,
                      ParseGpuNumbers("--gpu-memory", options.gpu_memory));
  if (memory.empty()) return absl::OkStatus();
  if (memory.size() != static_cast<size_t>(request->num_gpus)) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --gpu-memory of ", memory.size(), " GPUs, want ",
                     request->num_gpus, " (--gpus)"));
  }
  absl::StatusOr<std::vector<int>> split =
      cluster::SlotsByMemory(request->num_replicas, memory);
  if (!split.ok()) return Annotate(split.status(), "eplb");
  request->gpu_slots = *std::move(split);
  return absl::OkStatus();
}

absl::StatusOr<cluster::PlacementRequest> MakePlacementRequest(
    const EplbOptions& options) {
  cluster::PlacementRequest request = options.request;
  request.policy = options.policy == "auto" ? cluster::PlacementPolicy::kAuto
                   : options.policy == "global"
                       ? cluster::PlacementPolicy::kGlobal
                       : cluster::PlacementPolicy::kHierarchical;
  RF_RETURN_IF_ERROR(SetGpuSlots(options, &request));
  RF_ASSIGN_OR_RETURN(const std::vector<double> speeds,
                      ParseGpuNumbers("--gpu-speeds", options.gpu_speeds));
  request.gpu_speeds.assign(speeds.begin(), speeds.end());
  return request;
}

absl::StatusOr<EplbResult> PlaceLoads(const EplbOptions& options) {
  EplbResult result;
  RF_ASSIGN_OR_RETURN(result.request, MakePlacementRequest(options));
  absl::StatusOr<ExpertLoads> loads = ReadExpertLoads(options.weights);
  if (!loads.ok()) return Annotate(loads.status(), "eplb");
  result.loads = *std::move(loads);
  const auto place = [&](const cluster::PlacementRequest& request)
      -> absl::StatusOr<std::optional<cluster::ExpertPlacement>> {
    auto placement = cluster::PlaceExperts(result.loads.loads,
                                           result.loads.num_experts, request);
    if (!placement.ok()) return Annotate(placement.status(), "eplb");
    return std::make_optional(*std::move(placement));
  };
  cluster::PlacementRequest plain = result.request;
  plain.gpu_slots.clear();
  plain.gpu_speeds.clear();
  const bool uneven =
      !result.request.gpu_slots.empty() || !result.request.gpu_speeds.empty();
  if (uneven) {
    RF_ASSIGN_OR_RETURN(result.uneven, place(result.request));
  }
  // Slots that were said one by one need not be equal.
  if (result.request.gpu_slots.empty() ||
      plain.num_replicas % plain.num_gpus == 0) {
    RF_ASSIGN_OR_RETURN(result.plain, place(plain));
  }
  return result;
}

absl::Status Run(const EplbOptions& options) {
  RF_ASSIGN_OR_RETURN(const EplbResult result, PlaceLoads(options));
  if (options.format == "json") return PrintJson(EplbJson(result));
  return PrintText(EplbMarkdown(result));
}

}  // namespace

void RegisterEplb(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "eplb", "Place copies of experts on GPUs by measured loads");
  verb->group("Tools");
  verb->footer(kEplbFooter);
  auto options = std::make_shared<EplbOptions>();
  cluster::PlacementRequest& request = options->request;
  verb->add_option("--weights", options->weights,
                   "File with the loads of each layer's experts, JSON")
      ->required();
  verb->add_option("--replicas", request.num_replicas,
                   "Slots in all: experts and their further copies")
      ->required();
  verb->add_option("--groups", request.num_groups,
                   "Groups of experts that stay on one node")
      ->capture_default_str();
  verb->add_option("--nodes", request.num_nodes, "Nodes")
      ->capture_default_str();
  verb->add_option("--gpus", request.num_gpus, "GPUs of all nodes together")
      ->required();
  verb->add_option("--policy", options->policy, "hierarchical, global or auto")
      ->check(CLI::IsMember({"hierarchical", "global", "auto"}))
      ->capture_default_str();
  CLI::Option* slots =
      verb->add_option("--gpu-slots", options->gpu_slots,
                       "Slots of each GPU, as in 40,40,20; --replicas in all");
  verb->add_option(
          "--gpu-memory", options->gpu_memory,
          "Memory of each GPU, in any unit; slots are split in proportion")
      ->excludes(slots);
  verb->add_option("--gpu-speeds", options->gpu_speeds,
                   "Speed of each GPU, as in 1,1,0.5");
  AddFormatOptions(*verb, {"md", "json"}, &options->format);
  verb->callback([options, &invocation] {
    invocation.json = options->format == "json";
    invocation.run = [options] { return Run(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
