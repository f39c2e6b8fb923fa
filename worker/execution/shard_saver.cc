// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/shard_saver.h"

#include <utility>

#include "cluster/process/log.h"

namespace ringfleet::worker {

void ShardSaver::End() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  stop_ = false;
}

void ShardSaver::Start(std::shared_ptr<const LoadedShard> shard) {
  busy_ = true;
  thread_ = std::thread([this, shard = std::move(shard)] {
    // The shard's own threads compute.
    kernels::ThreadPool pool(1);
    const absl::Status status = shard->unsaved->Write(
        shard->parts, pool, [this](uint64_t, uint64_t) -> absl::Status {
          if (!stop_) return absl::OkStatus();
          return absl::CancelledError("the shard is no longer in use");
        });
    busy_ = false;
    if (status.ok()) {
      RF_LOG(kInfo, "kept the packed shard as ", shard->unsaved->path());
    } else {
      RF_LOG(kWarning, "the packed shard is not kept: ", status.message());
    }
  });
}

}  // namespace ringfleet::worker
