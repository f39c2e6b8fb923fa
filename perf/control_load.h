// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_PERF_CONTROL_LOAD_H_
#define RINGFLEET_PERF_CONTROL_LOAD_H_

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace ringfleet::perf {

// The control plane of a busy fleet: one bidirectional stream to each address,
// on which a small request goes out every `period` and is answered. It talks to
// the reflection service, which every daemon has and which is served as the
// worker's own Run stream is. Ends in the destructor.
class ControlLoad {
 public:
  ControlLoad(const std::vector<std::string>& addresses,
              std::chrono::microseconds period);
  ~ControlLoad();
  ControlLoad(const ControlLoad&) = delete;
  ControlLoad& operator=(const ControlLoad&) = delete;

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_CONTROL_LOAD_H_
