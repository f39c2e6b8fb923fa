// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/serve.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/session.h"
#include "coordinator/service/http_flags.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kServeFooter[] = R"(
Examples:
  ringfleet serve --model tests/models/tiny-v3
      prints `listening on http://127.0.0.1:8080` when requests are answered
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}'
  ringfleet serve --model DIR --local 2 --host 0.0.0.0 --api-key-file keys.txt --tls-cert-file cert.pem --tls-key-file key.pem

SIGTERM or Ctrl-C ends it: answers may end within --drain, a second one ends at
once. A fleet on hosts serves by `http:` in its cluster file.
)";

constexpr std::chrono::milliseconds kServePoll{50};
// Workers and connections end within this time.
constexpr absl::Duration kEndTime = absl::Seconds(10);

struct ServeOptions {
  SessionOptions session;
  std::string host = "127.0.0.1";
  int port = 8080;
  uint32_t parallel = 16;
  bool insecure = false;
  HttpFlags http{"30s"};
};

absl::Status RunServe(ServeOptions& options) {
  options.session.settings.set_without_mtp(true);
  RF_ASSIGN_OR_RETURN(const absl::Duration drain, options.http.Drain());
  HttpOptions& http = options.session.http.emplace();
  RF_RETURN_IF_ERROR(options.http.Read(&http));
  http.listen = {options.host, options.port};
  http.allow_insecure = options.insecure;
  options.session.settings.set_parallel(options.parallel);
  cluster::RaiseOpenFileLimit();  // Each client has a connection.
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(options.session));
  LocalFleet& fleet = *session->local();
  absl::Status status = PrintText(
      absl::StrCat("listening on ", fleet.coordinator().http()->url(), "\n"));
  Interrupt& interrupt = Interrupt::Get();
  while (status.ok() && !interrupt.requested()) {
    std::this_thread::sleep_for(kServePoll);
    status = fleet.CheckRunning();
  }
  if (!interrupt.requested()) return session->Finish(status);
  interrupt.AllowCleanup(drain + kEndTime);
  fleet.coordinator().DrainHttp(cluster::Deadline::After(drain));
  return fleet.Stop();
}

}  // namespace

void RegisterServe(CLI::App& app, Invocation& invocation) {
  CLI::App* verb =
      app.add_subcommand("serve", "Serve OpenAI's API on this machine");
  verb->group("One-shot");
  verb->footer(kServeFooter);
  auto options = std::make_shared<ServeOptions>();
  SessionOptions& session = options->session;
  session.samples = true;
  session.flags.AddAll(*verb, {"parallel", "reference"}, {});
  verb->add_option("--parallel", options->parallel, "Sequences at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--local", session.local, "Number of workers")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  verb->add_option("--host", options->host, "Name or number to listen on")
      ->capture_default_str();
  verb->add_option("--port", options->port, "0: any free port")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  options->http.Add(*verb, {});
  verb->add_flag("--insecure", options->insecure,
                 "Allow another address than loopback without TLS and keys");
  verb->callback([options, &invocation] {
    invocation.run = [options] { return RunServe(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
