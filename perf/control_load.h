// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_PERF_CONTROL_LOAD_H_
#define RINGFLEET_PERF_CONTROL_LOAD_H_

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace ringfleet::perf {

// Plays the control plane of a busy fleet: holds one bidirectional stream to
// each address, sends a small request every `period` and reads the answer. It
// talks to the reflection service, which every daemon serves as it does the
// worker's Run stream. Ends in the destructor.
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
