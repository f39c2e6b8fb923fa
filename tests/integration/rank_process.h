// SPDX-License-Identifier: Apache-2.0
// A process of tests/testing/collective_rank.cc, seen from the test that
// breaks it.
#ifndef RINGFLEET_TESTS_INTEGRATION_RANK_PROCESS_H_
#define RINGFLEET_TESTS_INTEGRATION_RANK_PROCESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/process.h"

namespace ringfleet::integration {

// One line of a rank. What its kind does not have is 0 or "".
struct Answer {
  std::string kind;     // "connected", "refused", "done", "failed", ...
  uint64_t number = 0;  // Epoch, operation or count.
  std::string code;
  double late = 0;  // Seconds after the deadline.
  double at = 0;    // Seconds on the clock of the machine.
  std::string message;
};

class RankProcess {
 public:
  // Starts `command` and waits for its port on the address `host`. `capture` as
  // in ProcessOptions.
  RankProcess(std::vector<std::string> command, const std::string& host,
              const std::string& capture);

  const std::string& address() const { return address_; }
  testing::Process& process() { return process_; }

  // `transport`: "grpc", or "auto" for shared memory.
  void Connect(uint64_t epoch, int rank, const std::string& transport,
               int milliseconds, const std::vector<std::string>& addresses);
  // `fault` as in collective_rank.cc: "kill 3 1 0".
  void Run(uint64_t seed, int count, int milliseconds,
           const std::string& fault = "none 0 0 0");
  void AskDropped() { process_.Write("dropped\n"); }

  // The next line; nullopt when none comes within `seconds` of a release build
  // or the process ends.
  std::optional<Answer> Next(double seconds);

 private:
  std::string address_;
  testing::Process process_;
  size_t read_ = 0;  // Bytes of its output.
};

}  // namespace ringfleet::integration

#endif  // RINGFLEET_TESTS_INTEGRATION_RANK_PROCESS_H_
