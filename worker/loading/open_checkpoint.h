// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_OPEN_CHECKPOINT_H_
#define RINGFLEET_WORKER_LOADING_OPEN_CHECKPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"
#include "cluster/rpc/cancellable_calls.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// The checkpoint of a request, ready to be read.
struct OpenedCheckpoint {
  cluster::ModelSpec spec;
  std::unique_ptr<cluster::Checkpoint> checkpoint;
  std::string fingerprint;
  // The files that this host lacks and their source: "/models/r1: no such
  // folder; fetched from worker 0". Empty: all files are here.
  std::string fetching;
};

// Opens the request's checkpoint: from its folder alone if the folder is
// complete, else with the files of its sources. `coordinator` is the address of
// a source without one. `calls` must outlive the checkpoint and ends fetching.
//
// Errors: those of LoadModelSpec, OpenCheckpoint and CheckpointFetcher.
// DATA_LOSS: this host's files belong to another checkpoint than the sources'.
absl::StatusOr<OpenedCheckpoint> OpenCheckpointFor(
    const v1::LoadRequest& request, const std::string& coordinator,
    cluster::CancellableCalls* calls);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_OPEN_CHECKPOINT_H_
