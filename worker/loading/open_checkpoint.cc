// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/open_checkpoint.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/checkpoint_fetcher.h"
#include "cluster/checkpoint/checkpoint_files.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::worker {
namespace {

using cluster::Checkpoint;
using cluster::CheckpointFetcher;

absl::StatusOr<OpenedCheckpoint> OpenFetching(
    const v1::LoadRequest& request, const std::string& coordinator,
    const absl::Status& missing, cluster::CancellableCalls* calls) {
  const std::string& model = request.model_path();
  std::vector<CheckpointFetcher::Source> sources;
  for (const v1::FileSource& source : request.sources()) {
    sources.push_back({source.name(), source.address().empty()
                                          ? coordinator
                                          : source.address()});
  }
  RF_ASSIGN_OR_RETURN(
      std::unique_ptr<CheckpointFetcher> fetcher,
      CheckpointFetcher::Open(model, sources,
                              static_cast<int>(request.layout().rank()), calls,
                              CheckpointFetcher::Options()));
  OpenedCheckpoint opened;
  const std::string sources_fingerprint = fetcher->fingerprint();
  const std::string names = fetcher->SourceNames();
  opened.fetching = absl::StrCat(missing.message(), "; fetched from ", names);
  RF_LOG(kWarning, missing.message(), "; fetching from ", names);
  RF_ASSIGN_OR_RETURN(opened.checkpoint, cluster::OpenFetchedCheckpoint(
                                             model, std::move(fetcher)));
  absl::StatusOr<cluster::ModelSpec> spec = cluster::ParseModelSpec(
      opened.checkpoint->config(), opened.checkpoint->params());
  if (!spec.ok()) return Annotate(spec.status(), model);
  opened.spec = *std::move(spec);
  RF_ASSIGN_OR_RETURN(opened.fingerprint, opened.checkpoint->Fingerprint());
  if (opened.fingerprint != sources_fingerprint) {
    return absl::DataLossError(
        absl::StrCat(model, ": the files here and those of ", names,
                     " are not of one checkpoint: fingerprint ",
                     opened.fingerprint, ", want ", sources_fingerprint));
  }
  return opened;
}

}  // namespace

absl::StatusOr<OpenedCheckpoint> OpenCheckpointFor(
    const v1::LoadRequest& request, const std::string& coordinator,
    cluster::CancellableCalls* calls) {
  if (request.model_path().empty()) {
    return absl::InvalidArgumentError("load: model_path is empty");
  }
  if (request.sources_size() > 0) {
    const absl::Status found =
        cluster::ListCheckpointFiles(request.model_path()).status();
    if (absl::IsNotFound(found)) {
      return OpenFetching(request, coordinator, found, calls);
    }
  }
  OpenedCheckpoint opened;
  RF_ASSIGN_OR_RETURN(opened.spec,
                      cluster::LoadModelSpec(request.model_path()));
  RF_ASSIGN_OR_RETURN(opened.checkpoint,
                      cluster::OpenCheckpoint(request.model_path()));
  RF_ASSIGN_OR_RETURN(opened.fingerprint, opened.checkpoint->Fingerprint());
  return opened;
}

}  // namespace ringfleet::worker
