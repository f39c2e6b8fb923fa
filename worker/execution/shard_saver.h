// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_
#define RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_

#include <atomic>
#include <memory>
#include <thread>

#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {

// Writes a shard that has been loaded into its folder while it is in use, on
// one thread. What it has to say goes to the log. Start and the destructor are
// called by one thread at a time, Stop by any.
class ShardSaver {
 public:
  ShardSaver() = default;
  ~ShardSaver() { End(); }
  ShardSaver(const ShardSaver&) = delete;
  ShardSaver& operator=(const ShardSaver&) = delete;

  // Gives up what it is writing and waits for that: for as long as the disk
  // takes for some MiB.
  void End();
  // The same without waiting.
  void Stop() { stop_ = true; }
  // Whether it reads the weights of a shard.
  bool busy() const { return busy_; }
  // After End. `shard` has `unsaved`.
  void Start(std::shared_ptr<const LoadedShard> shard);

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<bool> busy_ = false;
  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_
