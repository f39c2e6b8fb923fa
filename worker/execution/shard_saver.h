// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_
#define RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_

#include <atomic>
#include <memory>
#include <thread>

#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {

// Writes a loaded shard to the folder of packed shards on a thread of its own,
// while the shard is in use. Logs success or failure. One thread at a time may
// call Start, End and the destructor. Any thread may call Stop and busy.
class ShardSaver {
 public:
  ShardSaver() = default;
  ~ShardSaver() { End(); }
  ShardSaver(const ShardSaver&) = delete;
  ShardSaver& operator=(const ShardSaver&) = delete;

  // Stops writing, drops the unfinished file, and waits for the thread. The
  // wait lasts as long as the disk needs for some MiB.
  void End();
  // Stops writing, without waiting for the thread.
  void Stop() { stop_ = true; }
  // Returns whether the thread may still read the weights of a shard.
  bool busy() const { return busy_; }
  // Begins to write `shard`. Requires that `shard->unsaved` is set, and that
  // End was called after an earlier Start.
  void Start(std::shared_ptr<const LoadedShard> shard);

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<bool> busy_ = false;
  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_SHARD_SAVER_H_
