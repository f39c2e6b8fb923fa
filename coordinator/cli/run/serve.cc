// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/serve.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/session.h"
#include "coordinator/service/http_flags.h"
#include "coordinator/service/state_folder.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kServeFooter[] = R"(
Examples:
  ringfleet serve --model tests/models/tiny-v3
      prints `listening on http://127.0.0.1:8080` when requests are answered
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}'
  ringfleet serve --model DIR --local 2 --host 0.0.0.0 --api-key-file keys.txt --tls-cert-file cert.pem --tls-key-file key.pem

Batches (/v1/batches) are kept in --state-dir, by default in
ringfleet/serve-PORT of $XDG_STATE_HOME or ~/.local/state, and go on after a
restart. With --port 0 they end with the server.

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

// A folder that is removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() = default;
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  absl::StatusOr<std::string> Make() {
    std::error_code error;
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path(error);
    std::string path = absl::StrCat(folder.string(), "/ringfleet-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) return cluster::FileError(path, errno);
    path_ = path;
    return path;
  }

 private:
  std::string path_;
};

// Returns where batches are kept. A server of a fixed port finds them again,
// one of any free port forgets them at its end.
absl::StatusOr<StateOptions> StateOf(const ServeOptions& options,
                                     TemporaryFolder& temporary) {
  RF_ASSIGN_OR_RETURN(const v1::FleetSettings given,
                      options.session.flags.Read());
  StateOptions state;
  if (given.has_state_dir()) {
    state.folder = std::filesystem::absolute(given.state_dir()).string();
    state.required = true;
  } else if (options.port == 0) {
    RF_ASSIGN_OR_RETURN(state.folder, temporary.Make());
  } else {
    state.folder =
        StateFolder(absl::StrCat("serve-", options.port)).value_or("");
  }
  return state;
}

// Says once why batches cannot be stored, and once that they can again.
class BatchTrouble {
 public:
  void Show(const absl::Status& trouble) {
    if (trouble == shown_) return;
    if (trouble.ok()) {
      std::fprintf(stderr, "note: batches can be stored again\n");
    } else {
      std::fprintf(stderr, "warning: batches cannot be stored: %s\n",
                   OneLine(trouble.message()).c_str());
    }
    shown_ = trouble;
  }

 private:
  absl::Status shown_;
};

absl::Status RunServe(ServeOptions& options) {
  TemporaryFolder temporary;  // Outlives the fleet.
  RF_ASSIGN_OR_RETURN(options.session.state, StateOf(options, temporary));
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
  BatchTrouble trouble;
  while (status.ok() && !interrupt.requested()) {
    trouble.Show(fleet.coordinator().batch_trouble());
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
