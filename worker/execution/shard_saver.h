// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_
#define RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_

#include <atomic>
#include <memory>
#include <thread>

#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {

// Writes a loaded shard to its folder while the shard is in use, on a thread of
// its own. Reports to the log. One thread at a time calls Start, End and the
// destructor; any thread calls Stop and busy.
class ShardSaver {
 public:
  ShardSaver() = default;
  ~ShardSaver() { End(); }
  ShardSaver(const ShardSaver&) = delete;
  ShardSaver& operator=(const ShardSaver&) = delete;

  // Gives up the file that is being written, and waits for the thread. The wait
  // lasts as long as the disk takes for some MiB.
  void End();
  // Gives up the file without waiting.
  void Stop() { stop_ = true; }
  // Returns whether the thread reads the weights of a shard.
  bool busy() const { return busy_; }
  // Begins to write `shard`. Requires End before, and `shard->unsaved`.
  void Start(std::shared_ptr<const LoadedShard> shard);

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<bool> busy_ = false;
  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_
