// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/experts/rebalance.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/placement/placement.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kRebalanceFooter[] = R"(
With experts spread over hosts, each layer waits for the busiest host. `rebalance`
computes a placement from recent loads (DeepSeek's EPLB), fills spare slots
(experts.slots of the cluster file) with copies of the busiest experts, and moves
experts while jobs go on. Every worker loads only experts that it lacks, from its
own disk. All workers change over between the same two steps.

Imbalance is the busiest coordinate's load over the mean; 1 is the best.

Examples:
  ringfleet rebalance --cluster cluster.yaml --dry-run     what it would gain
  ringfleet rebalance --cluster cluster.yaml
  ringfleet rebalance --cluster cluster.yaml --slots 288   with 32 copies of 256
)";

struct RebalanceOptions {
  SessionOptions session;
  bool dry_run = false;
  std::string policy = "global";
  uint32_t slots = 0;
  std::string output = "text";
};

Json ProposalJson(const v1::RebalanceProposal& proposal, bool moved) {
  Json layers = Json::array();
  for (const auto& layer : proposal.layers()) {
    layers.push_back({{"layer", layer.layer()},
                      {"imbalance_before", layer.imbalance_before()},
                      {"imbalance_after", layer.imbalance_after()},
                      {"experts_to_load", layer.experts_to_load()}});
  }
  return {{"imbalance_before", proposal.imbalance_before()},
          {"imbalance_after", proposal.imbalance_after()},
          {"bytes_to_load", proposal.bytes_to_load()},
          {"moved", moved},
          {"layers", std::move(layers)}};
}

std::string ProposalText(const v1::RebalanceProposal& proposal, bool moved) {
  std::string text = "layer  imbalance  after  experts to load\n";
  for (const auto& layer : proposal.layers()) {
    absl::StrAppendFormat(&text, "%5u  %9.3f  %5.3f  %15u\n", layer.layer(),
                          layer.imbalance_before(), layer.imbalance_after(),
                          layer.experts_to_load());
  }
  absl::StrAppendFormat(&text, "  all  %9.3f  %5.3f  %12.3f GB%s\n",
                        proposal.imbalance_before(), proposal.imbalance_after(),
                        static_cast<double>(proposal.bytes_to_load()) * 1e-9,
                        moved                           ? ", moved"
                        : proposal.bytes_to_load() == 0 ? ": nothing to gain"
                                                        : "; dry run");
  return text;
}

absl::Status Run(const RebalanceOptions& options) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(options.session));
  v1::RebalanceRequest request;
  request.set_dry_run(options.dry_run);
  request.set_policy(options.policy == "hierarchical"
                         ? v1::EXPERT_POLICY_HIERARCHICAL
                         : v1::EXPERT_POLICY_GLOBAL);
  request.set_slots(options.slots);
  InterruptibleCall call;
  const auto reader = session->stub().Rebalance(call.context(), request);
  v1::RebalanceProposal proposal;
  v1::RebalanceProgress progress;
  {
    Progress bar;
    while (reader->Read(&progress)) {
      if (progress.has_proposal()) {
        proposal = std::move(*progress.mutable_proposal());
      } else {
        bar.Bytes("loading experts", progress.loading().bytes_done(),
                  progress.loading().bytes_total());
      }
    }
  }
  const grpc::Status status = reader->Finish();
  RF_RETURN_IF_ERROR(session->Finish(cluster::FromGrpc(status)));
  const bool moved = !options.dry_run && proposal.bytes_to_load() > 0;
  if (options.output == "json") return PrintJson(ProposalJson(proposal, moved));
  return PrintText(ProposalText(proposal, moved));
}

}  // namespace

void RegisterRebalance(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<RebalanceOptions>();
  CLI::App* verb = app.add_subcommand(
      "rebalance", "Move experts of a running fleet to balance its hosts");
  verb->group("Fleet");
  verb->footer(kRebalanceFooter);
  options->session.local = 0;
  AddFleetChoice(*verb, options->session.fleet);
  verb->add_flag("--dry-run", options->dry_run,
                 "Print the gain and the bytes to load; move nothing");
  verb->add_option("--policy", options->policy,
                   "global: copies on any host; hierarchical: all experts of a "
                   "router's group on one host")
      ->check(CLI::IsMember({"global", "hierarchical"}))
      ->capture_default_str();
  verb->add_option("--slots", options->slots,
                   "Experts and copies that all hosts hold together in each "
                   "layer from now on [as before]")
      ->check(CLI::Range(1, cluster::kMaxReplicas));
  AddFormatOptions(*verb, {"text", "json"}, &options->output);
  verb->callback([options, &invocation] {
    invocation.json = options->output == "json";
    invocation.run = [options] { return Run(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
