// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_PARENT_WATCH_H_
#define RINGFLEET_WORKER_SERVICE_PARENT_WATCH_H_

#include <thread>

namespace ringfleet::worker {

// Ends this process when its parent ends. The process sends itself SIGTERM when
// the other end of a pipe closes. The kernel sends it SIGKILL when the parent's
// thread dies. Construct it in the main thread.
class ParentWatch {
 public:
  // `parent_fd` is the reading end of a pipe whose other end only the parent
  // holds. -1: nothing is watched.
  explicit ParentWatch(int parent_fd);
  ~ParentWatch();
  ParentWatch(const ParentWatch&) = delete;
  ParentWatch& operator=(const ParentWatch&) = delete;

 private:
  int wake_[2] = {-1, -1};  // Closing the second end ends the thread.
  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_PARENT_WATCH_H_
