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
  // What this host lacks and who has it: "/models/r1: no such folder; fetched
  // from worker 0". Empty: all is here.
  std::string fetching;
};

// Opens the request's checkpoint: from its folder alone if that is complete,
// else with what its sources have. `coordinator` is the address of a source
// that has none. `calls`, which must outlive the checkpoint, ends what is
// fetched.
//
// Errors: those of LoadModelSpec, Checkpoint and CheckpointFetcher. DATA_LOSS:
// the files of this host are not of the sources' checkpoint.
absl::StatusOr<OpenedCheckpoint> OpenCheckpointFor(
    const v1::LoadRequest& request, const std::string& coordinator,
    cluster::CancellableCalls* calls);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_OPEN_CHECKPOINT_H_
