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

// An open checkpoint.
struct OpenedCheckpoint {
  cluster::ModelSpec spec;
  std::unique_ptr<cluster::Checkpoint> checkpoint;
  std::string fingerprint;
  // Text for the user: the missing folder and the source of its files, such as
  // "/models/r1: no such folder; fetched from worker 0". Empty: this host has
  // the files.
  std::string fetching;
};

// Opens the checkpoint of `request`. Reads the folder model_path if this host
// has its files, and else fetches them from request.sources. `coordinator` is
// the address of sources that have none. `calls` cancels fetches and must
// outlive the checkpoint.
//
// Errors: those of LoadModelSpec, OpenCheckpoint and CheckpointFetcher.
// DATA_LOSS: the files of this host and those of the sources belong to
// different checkpoints.
absl::StatusOr<OpenedCheckpoint> OpenCheckpointFor(
    const v1::LoadRequest& request, const std::string& coordinator,
    cluster::CancellableCalls* calls);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_OPEN_CHECKPOINT_H_
