// SPDX-License-Identifier: Apache-2.0
// The command line: parses, runs one verb, reports its result.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/process/build_info.h"
#include "cluster/process/standard_streams.h"
#include "cluster/process/thread_limit.h"
#include "cluster/rpc/server.h"
#include "coordinator/cli/bench/bench.h"
#include "coordinator/cli/bench/bench_request.h"
#include "coordinator/cli/chat/chat.h"
#include "coordinator/cli/checkpoint/convert.h"
#include "coordinator/cli/checkpoint/inspect.h"
#include "coordinator/cli/checkpoint/synth.h"
#include "coordinator/cli/collectives/collectives.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/doctor/doctor.h"
#include "coordinator/cli/experts/eplb.h"
#include "coordinator/cli/experts/rebalance.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/launch/call.h"
#include "coordinator/cli/launch/down.h"
#include "coordinator/cli/launch/logs.h"
#include "coordinator/cli/launch/status.h"
#include "coordinator/cli/launch/up.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/plan/plan.h"
#include "coordinator/cli/run/generate.h"
#include "coordinator/cli/run/jobs.h"
#include "coordinator/cli/run/score.h"
#include "coordinator/cli/run/serve.h"
#include "coordinator/cli/run/tokenize.h"
#include "coordinator/cli/targets.h"
#include "coordinator/cli/unexpected_arguments.h"
#include "coordinator/cli/value_checks.h"

namespace ringfleet::coordinator::cli {
namespace {

// In the order of the help text, which shows the groups as they first appear:
// Fleet, One-shot, Jobs.
constexpr RegisterCommand kCommands[] = {
    RegisterUp,          RegisterDown,     RegisterStatus,     RegisterCall,
    RegisterLogs,        RegisterGenerate, RegisterChat,       RegisterServe,
    RegisterScore,       RegisterTokenize, RegisterDetokenize, RegisterSubmit,
    RegisterJobs,        RegisterShow,     RegisterCancel,     RegisterTargets,
    RegisterCollectives, RegisterSynth,    RegisterBench,      RegisterPlan,
    RegisterInspect,     RegisterConvert,  RegisterDoctor,     RegisterEplb,
    RegisterRebalance,
};

constexpr char kProgramFooter[] = R"(
Examples:
  ringfleet generate --model tests/models/tiny-v3 -p "def main(" -n 40
      one command, one worker; --local 2 splits the model over two
  ringfleet up --cluster cluster.yaml
  ringfleet submit --cluster cluster.yaml -p "def main("
  ringfleet down --cluster cluster.yaml
      a fleet that stays (cluster/launch/README.md)
  ringfleet call 127.0.0.1:50051 list
      what a daemon serves

`ringfleet VERB --help` explains a verb by examples.

Errors are one line on stderr; with --json also {"error":{"code","message"}} on
stdout. Exit: 0 done, 1 other failure, 2 usage or bad input, 3 fleet
unavailable, lost or late, 4 corrupt or mismatching data, 130 interrupted,
141 nobody reads stdout any more.
)";

// Returns true if a command line that could not be parsed asks for JSON.
bool AsksForJson(int argc, char** argv) {
  const auto is_json = [](absl::string_view format) {
    return format == "json" || format == "jsonl";
  };
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--json") return true;
    if (argument == "-o" || argument == "--output") {
      if (i + 1 < argc && is_json(argv[i + 1])) return true;
    } else if (absl::ConsumePrefix(&argument, "--output=") ||
               absl::ConsumePrefix(&argument, "-o")) {
      if (is_json(argument)) return true;
    }
  }
  return false;
}

// Returns true if the word is a verb or empty.
bool IsKnown(const std::string& verb, const CLI::App& app) {
  const auto is_it = [&](const CLI::App* part) {
    return part->get_name() == verb;
  };
  return verb.empty() || !app.get_subcommands(is_it).empty();
}

// Prints the help text or the version, and returns the exit code.
int PrintHelp(const CLI::App& app, const CLI::ParseError& request, bool json) {
  std::ostringstream text;
  app.exit(request, text, text);
  Interrupt interrupt;
  const bool version = request.get_name() == "CallForVersion";
  const absl::Status status =
      json && version
          ? PrintJson({{"version", RINGFLEET_VERSION},
                       {"build_id", cluster::GetBuildInfo().build_id()}})
          : PrintText(text.str());
  if (interrupt.exit_code() == kOutputClosedExit) return kOutputClosedExit;
  if (!status.ok()) PrintError(status, /*json=*/false);
  return ExitCode(status);
}

int Main(int argc, char** argv) {
  cluster::EndWithoutResources("ringfleet");
  cluster::ConfigureGrpcProcess();
  cluster::BlockTerminationSignals();
  CLI::App app("Serves DeepSeek-class models on a fleet of CPU hosts.",
               "ringfleet");
  app.set_version_flag("--version", "ringfleet " RINGFLEET_VERSION);
  // At most one verb also keeps the arguments of a verb from being taken for
  // another verb.
  app.require_subcommand(0, 1);
  app.footer(kProgramFooter);
  Invocation invocation;
  for (const RegisterCommand add : kCommands) add(app, invocation);
  CheckNumbers(app);

  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  // `help VERB` is `VERB --help`.
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  }
  // A word behind an option is no verb.
  std::string verb =
      !arguments.empty() && arguments[0][0] != '-' ? arguments[0] : "";
  absl::Status status;
  bool interrupted = false;
  bool output_closed = false;
  try {
    if (!arguments.empty() && arguments[0] == "bench") {
      arguments = WithLongOptions(std::move(arguments));
    }
    std::reverse(arguments.begin(), arguments.end());  // As CLI11 wants them.
    app.parse(arguments);
    if (!invocation.run) {
      status = absl::InvalidArgumentError("no verb");
    }
  } catch (const CLI::ExtrasError&) {
    const std::vector<CLI::App*> verbs = app.get_subcommands();
    status = absl::InvalidArgumentError(DescribeUnexpected(
        verbs.empty() ? app : *verbs.front(), app.remaining(true)));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0 && IsKnown(verb, app)) {
      return PrintHelp(app, error, AsksForJson(argc, argv));
    }
    status = absl::InvalidArgumentError(error.what());
  }
  if (!IsKnown(verb, app)) {
    status =
        absl::InvalidArgumentError(absl::StrCat("unknown verb '", verb, "'"));
    verb.clear();
  }
  if (!status.ok()) {
    status = absl::InvalidArgumentError(
        absl::StrCat("usage: ", status.message(), " (see ringfleet ", verb,
                     verb.empty() ? "" : " ", "--help)"));
    invocation.json = AsksForJson(argc, argv);
  } else if (status = cluster::CheckThreads(cluster::ClientThreads());
             status.ok()) {
    Interrupt interrupt;
    try {
      status = invocation.run();
    } catch (const std::exception& error) {
      // A library may throw. Its exception becomes an error, so that workers
      // are stopped and the caller gets its document.
      status = absl::InternalError(absl::StrCat("internal: ", error.what()));
    }
    interrupted = interrupt.requested();
    output_closed = interrupt.exit_code() == kOutputClosedExit;
  }
  // Ends like a program that SIGPIPE ends, without a word.
  if (output_closed) return kOutputClosedExit;
  if (!status.ok()) PrintError(status, invocation.json);
  // Another client may have cancelled the job that this command waited for.
  if (absl::IsCancelled(status) && !interrupted) return 1;
  return ExitCode(status);
}

}  // namespace
}  // namespace ringfleet::coordinator::cli

RF_OPEN_STANDARD_STREAMS_FIRST();

int main(int argc, char** argv) {
  return ringfleet::coordinator::cli::Main(argc, argv);
}
