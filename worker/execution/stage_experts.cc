// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/stage_experts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "worker/loading/open_checkpoint.h"

namespace ringfleet::worker {
namespace {

// Nice value of the loading thread. Threads of a step have 0.
constexpr int kNiceness = 10;

uint64_t ExpertBytes(const LoadedShard& shard, const LoadOptions& options) {
  const size_t columns = shard.plan.expert_columns.size();
  const size_t hidden = shard.spec.hidden_size;
  const kernels::WeightForm form = options.expert_form.value_or(options.form);
  return 2 * kernels::WeightMatrix::Bytes(form, columns, hidden) +
         kernels::WeightMatrix::Bytes(form, hidden, columns);
}

class Staging {
 public:
  Staging(const LoadedShard& shard, const cluster::ExpertLayout& next,
          std::vector<MissingExpert> missing,
          absl::FunctionRef<absl::Status(uint64_t, uint64_t)> report)
      : shard_(shard),
        next_(next),
        missing_(std::move(missing)),
        report_(report) {
    bytes_total_ = missing_.size() * ExpertBytes(shard_, shard_.options);
    if (shard_.reference.has_value()) {
      bytes_total_ += missing_.size() * ExpertBytes(shard_, kReference);
    }
  }

  uint64_t bytes_total() const { return bytes_total_; }

  absl::StatusOr<StagedWeights> Run(const cluster::Checkpoint& checkpoint) {
    RF_RETURN_IF_ERROR(report_(0, bytes_total_));
    kernels::ThreadPool pool(1);
    StagedWeights staged;
    RF_ASSIGN_OR_RETURN(staged.main, Load(checkpoint, shard_.options, pool));
    if (shard_.reference.has_value()) {
      RF_ASSIGN_OR_RETURN(staged.reference, Load(checkpoint, kReference, pool));
    }
    return staged;
  }

 private:
  static constexpr LoadOptions kReference = {
      .form = kernels::WeightForm::kReference};

  absl::StatusOr<StagedExperts> Load(const cluster::Checkpoint& checkpoint,
                                     const LoadOptions& options,
                                     kernels::ThreadPool& pool) {
    StagedExperts staged = {.layout = next_, .missing = missing_};
    for (const MissingExpert& missing : missing_) {
      RF_ASSIGN_OR_RETURN(
          MlpWeights weights,
          LoadExpert(checkpoint, shard_.spec, shard_.plan, options,
                     missing.layer, missing.expert, pool));
      staged.loaded.push_back(std::move(weights));
      bytes_done_ += ExpertBytes(shard_, options);
      RF_RETURN_IF_ERROR(report_(bytes_done_, bytes_total_));
    }
    return staged;
  }

  const LoadedShard& shard_;
  const cluster::ExpertLayout& next_;
  const std::vector<MissingExpert> missing_;
  const absl::FunctionRef<absl::Status(uint64_t, uint64_t)> report_;
  uint64_t bytes_total_ = 0;
  uint64_t bytes_done_ = 0;
};

}  // namespace

absl::StatusOr<StagedWeights> StageExperts(
    const LoadedShard& shard, const cluster::ExpertLayout& now,
    const cluster::ExpertLayout& next, uint64_t available_bytes,
    const std::string& coordinator, cluster::CancellableCalls* fetching,
    absl::FunctionRef<absl::Status(uint64_t, uint64_t)> report) {
  Staging staging(shard, next,
                  MissingExperts(now, next, shard.plan.expert_coordinate),
                  report);
  if (staging.bytes_total() > available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("experts: ", staging.bytes_total() >> 20,
                     " MiB beside what is loaded, the host has ",
                     available_bytes >> 20, " MiB available"));
  }
  absl::StatusOr<StagedWeights> staged;
  // A thread of its own, because a lowered priority stays low.
  std::thread thread([&] {
    static_cast<void>(setpriority(PRIO_PROCESS, gettid(), kNiceness));
    staged = [&]() -> absl::StatusOr<StagedWeights> {
      RF_ASSIGN_OR_RETURN(
          const OpenedCheckpoint opened,
          OpenCheckpointFor(shard.request, coordinator, fetching));
      if (opened.fingerprint != shard.fingerprint) {
        return absl::DataLossError(
            absl::StrCat("experts: the checkpoint has changed: fingerprint ",
                         opened.fingerprint, ", want ", shard.fingerprint));
      }
      return staging.Run(*opened.checkpoint);
    }();
  });
  thread.join();
  return staged;
}

}  // namespace ringfleet::worker
