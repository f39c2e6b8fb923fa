// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/plan/plan.h"

#include <memory>
#include <string>

#include "cluster/process/status_macros.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/plan/plan_report.h"
#include "coordinator/cli/plan/plan_request.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kPlanFooter[] = R"(
Says if a model fits, what each host holds, the best mesh, and why alternatives
lose. Predicts tokens per second for --batch sequences with --context cached
positions each, and for one prompt of --context tokens. Reads config.json and the
hosts' rates, no weights; asks no host. --explain prints the cost model.

The fleet is one of:
  --hosts N          N equal hosts of --memory, --bandwidth, --network, --latency
  --fleet FILE.yaml  a cluster file; --bandwidth, --network and --latency give what
                     it does not say. memory_gib and threads may differ by worker;
                     workers of one host share its bandwidth
  --fleet FILE.json  the output of `ringfleet doctor -o json`:
                     {"workers":[{"host","threads","memory_gib","read_gbps",
                     "int8_gops"}],"network":{"gbit","latency_us"}} and measured
                     rates of products and attention. Without measured rates, or
                     with --bandwidth, --gops or --threads, the rates of a Zen 4
                     core are scaled to "int8_gops"
--memory is the memory of a worker, without what the system and other programs use.

A model that does not fit is no error: "fits" is false, and "hosts_needed" is the
number of such hosts that it needs.

Examples:
  ringfleet plan --model config.json --hosts 8 --memory 128 --bandwidth 200 \
      --network 25 --latency 20
  ringfleet plan --model DIR --hosts 1 --memory 64 --bandwidth 60 --batch 32
  ringfleet plan --fleet cluster.yaml --bandwidth 300 --network 10 --latency 30
  ringfleet plan --model synth:r1-slice --fleet measured.json --context 2048 -o json
)";

struct PlanVerb {
  PlanOptions what;
  std::string format = "md";
  bool explain = false;
};

absl::Status Run(const PlanVerb& options) {
  RF_ASSIGN_OR_RETURN(const PlanInput input, ReadPlanInput(options.what));
  const PlanResult result = ComputePlan(input);
  if (options.format == "json") return PrintJson(PlanJson(input, result));
  return PrintText(PlanMarkdown(input, result, options.explain));
}

}  // namespace

void RegisterPlan(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "plan", "Say if a model fits a fleet, and predict its speed");
  verb->group("Tools");
  verb->footer(kPlanFooter);
  auto options = std::make_shared<PlanVerb>();
  PlanOptions& what = options->what;
  verb->add_option("-m,--model", what.model,
                   "Folder of a checkpoint, a config.json, or synth:NAME");
  verb->add_option("--fleet", what.fleet,
                   "cluster.yaml, or measured rates as JSON");
  verb->add_option("--hosts", what.hosts, "Number of equal hosts, 1 to 64");
  verb->add_option("--memory", what.memory_gib, "Memory of a host, GiB");
  verb->add_option("--bandwidth", what.bandwidth_gbps,
                   "Memory bandwidth of a host, GB/s");
  verb->add_option("--network", what.network_gbit,
                   "Network of a host, Gbit/s in one direction");
  verb->add_option("--latency", what.latency_us,
                   "One-way latency of the network, us: half of a ping");
  verb->add_option("--gops", what.gops,
                   "Large int8 products of a host, 1e9 operations a second "
                   "(two for each weight)");
  verb->add_option("-t,--threads", what.threads, "Threads of a host");
  verb->add_option("-c,--context,--ctx-size", what.context,
                   "Positions of a sequence (default 4096, or the model's "
                   "maximum)");
  verb->add_option("--batch,-b,--parallel", what.batch,
                   "Sequences together (default 1)");
  for (const char* type : {"dtype", "cache_type", "wire"}) {
    what.settings.Add(*verb, type);
  }
  AddFormatOptions(*verb, {"md", "json"}, &options->format);
  verb->add_flag("--explain", options->explain,
                 "Also print how times are predicted");
  verb->callback([options, &invocation] {
    invocation.json = options->format == "json";
    invocation.run = [options] { return Run(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
