// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/checkpoint/synth.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/synthetic/synthetic_model.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/local_workers.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"
#include "coordinator/cli/value_checks.h"
#include "protos/worker.grpc.pb.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kSynthFooter[] = R"(
Writes a checkpoint of random weights in the form of the published DeepSeek-R1: fp8
e4m3 blocks with scales, the rest bf16, config.json, and a tokenizer in which every
id has text. It is for measurements and tests; text of such a model means nothing.

  tiny      3 layers of width 160, 16 experts, one multi-token prediction layer;
            under 2 MB
  r1-slice  R1's layer dimensions, 1 dense and 2 MoE layers of 32 routed
            experts, 32768 tokens; 4.33 billion parameters, 4.8 GB
  glm-flash-slice, kimi-slice, glm5-slice
            the like of GLM-4.7-Flash, Kimi K2 and GLM-5: 3 layers with their
            dimensions, 32 routed experts, 32768 tokens

No file is needed to run such a model: `--model synth:r1-slice` makes the same weights
in memory, for every verb and for `model:` of a cluster file. synth:r1-slice,seed=7
and synth:r1-slice,zipf=1 (or both) choose other weights. The weights depend on
preset, seed and exponent only, not on threads, host or number of workers.

--router-zipf A sets e_score_correction_bias so that the i-th most popular expert of a
layer gets a share of all choices proportional to 1/i^A; 0 is uniform. A token chooses
an expert once, so no share exceeds 0.98 over the experts per token. For r1-slice this
is 0.1225: with A = 1 the first two experts have this share, with A = 2 the first four.
The rest of their choices goes to the other experts in proportion. Experts that are
neighbours in popularity share a group, because a token's experts come from half of
the groups. Biases are fitted to 16384 random inputs. On other random inputs an
expert's share is within a few percent, a rare expert's within a tenth, beside the
chance of the draws. Text that repeats a few tokens repeats their experts: measure
with ids from the whole vocabulary.

The folder must be new, empty, or left by an interrupted run. A file gets its name when
it is complete, the index and config.json last. A run that fails removes its files.

Examples:
  ringfleet synth --preset tiny --out /tmp/tiny
  ringfleet synth --preset r1-slice --out /srv/models/r1-slice --seed 7
  ringfleet synth --preset r1-slice --out /srv/models/r1-zipf --router-zipf 1
  ringfleet generate --model synth:tiny -p "Hello" -n 20
)";

struct SynthOptions {
  cluster::SyntheticModel model;
  std::string out;
  bool force = false;
  uint32_t threads = 0;
  bool json = false;
};

absl::StatusOr<v1::SynthesizeProgress> CallWorker(
    const std::string& address, const v1::SynthesizeRequest& request) {
  const auto stub = v1::Worker::NewStub(ConnectChannel(address));
  InterruptibleCall call;
  const auto reader = stub->Synthesize(call.context(), request);
  v1::SynthesizeProgress progress;
  {
    Progress bar;
    while (reader->Read(&progress)) {
      bar.Bytes("writing", progress.bytes_done(), progress.bytes_total());
    }
  }
  const grpc::Status status = reader->Finish();
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  RF_RETURN_IF_ERROR(cluster::FromGrpc(status));
  if (!progress.done()) {
    return absl::InternalError("synth: ended without a message of its end");
  }
  return progress;
}

absl::StatusOr<v1::SynthesizeProgress> SynthesizeLocally(
    const v1::SynthesizeRequest& request) {
  RF_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalWorkers> local,
      LocalWorkers::Create(1, static_cast<int>(request.threads())));
  absl::StatusOr<v1::SynthesizeProgress> result;
  absl::Status status = local->Spawn({"--coordinator", "none"});
  if (status.ok()) {
    const absl::StatusOr<std::vector<std::string>> addresses =
        local->WaitAddresses();
    status = addresses.status();
    if (status.ok()) {
      result = CallWorker(addresses->front(), request);
      status = result.status();
    }
  }
  if (status.ok()) status = local->Stop();
  if (status.ok()) return result;
  // A worker that has ended explains more than its broken connection.
  if (absl::IsUnavailable(status)) {
    const absl::Status ended = local->CheckRunning();
    if (!ended.ok()) status = ended;
  }
  local->Explain(status);
  return Annotate(status, "synth");
}

absl::Status Run(const SynthOptions& options) {
  const std::string model = cluster::FormatSyntheticModel(options.model);
  const absl::Status valid = cluster::ParseSyntheticModel(model).status();
  if (!valid.ok()) return Annotate(valid, "usage");
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::absolute(options.out, error);
  if (error) {  // No path at all, or a working directory that has gone.
    return absl::InvalidArgumentError(absl::StrCat(
        "usage: --out '", options.out, "', want a folder: ", error.message()));
  }
  v1::SynthesizeRequest request;
  request.set_model(model);
  request.set_folder(folder.string());
  request.set_overwrite(options.force);
  request.set_threads(options.threads);
  const auto begun = std::chrono::steady_clock::now();
  RF_ASSIGN_OR_RETURN(const v1::SynthesizeProgress done,
                      SynthesizeLocally(request));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun)
          .count();
  if (options.json) {
    return PrintJson({{"path", request.folder()},
                      {"preset", options.model.preset},
                      {"seed", options.model.seed},
                      {"router_zipf", options.model.zipf},
                      {"model", model},
                      {"parameters", done.parameters()},
                      {"bytes", done.bytes_total()},
                      {"seconds", seconds},
                      {"index_xxh3_128", done.index_hash()}});
  }
  return PrintText(absl::StrFormat(
      "%s: %s, %.3f million parameters in all layers, %s in %.1f s, %s/s\n",
      request.folder(), model, static_cast<double>(done.parameters()) / 1e6,
      HumanBytes(done.bytes_total()), seconds,
      HumanBytes(done.bytes_total() / seconds)));
}

}  // namespace

void RegisterSynth(CLI::App& app, Invocation& invocation) {
  CLI::App* verb =
      app.add_subcommand("synth", "Write a checkpoint of random weights");
  verb->group("Tools");
  verb->footer(kSynthFooter);
  auto options = std::make_shared<SynthOptions>();
  verb->add_option("--preset", options->model.preset,
                   absl::StrJoin(cluster::SyntheticPresets(), " or "))
      ->check(CLI::IsMember(cluster::SyntheticPresets()))
      ->required();
  verb->add_option("--out", options->out, "Folder to write into")
      ->required()
      ->check(Utf8Path());
  verb->add_option("-s,--seed", options->model.seed, "Seed of all weights")
      ->capture_default_str();
  verb->add_option("--router-zipf", options->model.zipf,
                   "Exponent of the experts' popularity, 0 to 3")
      ->capture_default_str();
  verb->add_flag("--force", options->force,
                 "Write into a folder that is not empty, and replace files of "
                 "the same names");
  verb->add_option("-t,--threads", options->threads,
                   "Threads; 0: all CPUs this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->add_flag("--json", options->json, "One JSON document on stdout");
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options] { return Run(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
