// SPDX-License-Identifier: Apache-2.0
// A world of rank processes that is broken again and again, and must come back
// each time.
#ifndef RINGFLEET_TESTS_INTEGRATION_FAULT_WORLD_H_
#define RINGFLEET_TESTS_INTEGRATION_FAULT_WORLD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/rank_process.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/test_network.h"

namespace ringfleet::integration {

// Counts the time for which the machine ran nothing of ours: a bound on how
// soon something happens holds beside that only.
class PauseWatch {
 public:
  PauseWatch();
  ~PauseWatch();
  double seconds() const { return paused_us_ * 1e-6; }

 private:
  std::atomic<int64_t> paused_us_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// The longest times seen, in seconds, and how many faults they cover.
struct FaultTimes {
  int faults = 0;
  double late = -1e9;   // An error after the deadline.
  double recovery = 0;  // From the last error to results of a new epoch.
};

class FaultWorld {
 public:
  // Time of an operation, and of connecting.
  static constexpr int kDeadlineMs = 1000 * testing::kSlowdown;
  static constexpr int kConnectMs = 3000 * testing::kSlowdown;
  // No answer for this long, in a release build, is a hang.
  static constexpr double kHang = 10;
  // What users may rely on, in a release build.
  static constexpr double kReportSeconds = 0.25;
  static constexpr double kRecoverySeconds = 2;

  // `transport` as for RankProcess; `folder` for the processes' output. Ranks
  // run on the hosts of `network`, else all on loopback.
  FaultWorld(int size, const std::string& transport, const std::string& folder,
             const testing::TestNetwork* network = nullptr);

  int size() const { return static_cast<int>(ranks_.size()); }
  RankProcess& rank(int rank) { return *ranks_[rank]; }
  const std::string& transport() const { return transport_; }
  std::string Name(int rank) const;  // "rank 2 (127.0.0.1:1234)".
  const FaultTimes& times() const { return times_; }

  // Forms the next epoch; every rank must connect.
  void Connect();
  // A short stream without a fault; every rank must finish it.
  void RunHealthy(uint64_t seed);

  // Answers by rank; none of `silent`, which cannot answer.
  using Answers = std::map<int, Answer>;
  Answers Collect(const std::vector<int>& silent);

  // Every answer is an error, in time but for that of `late`, and has one of
  // `codes` and all of `texts`; those of `culprit` need only the code. Follows
  // the Collect of `answers`.
  void ExpectFailed(const Answers& answers, int culprit,
                    const std::vector<std::string>& codes,
                    const std::vector<std::string>& texts, int late = -1);
  void ExpectDone(const Answers& answers);

  // Puts a new process in the place of `rank`; returns the old one.
  std::unique_ptr<RankProcess> Replace(int rank);
  // A new epoch gives results soon after the last of `answers`, or, where that
  // is later, after `mended`: until then a broken network lets nobody connect.
  void Recover(const Answers& answers, uint64_t seed,
               std::chrono::steady_clock::time_point mended = {});
  // The old process of `rank`, stopped until now, finds that its epoch is over,
  // and cannot enter that of its successor.
  void ExpectFenced(RankProcess& zombie, int rank, uint64_t seed);

 private:
  std::unique_ptr<RankProcess> Start(int rank);
  std::vector<std::string> Addresses() const;

  const std::string transport_;
  const std::string folder_;
  const testing::TestNetwork* const network_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  uint64_t epoch_ = 0;
  int started_ = 0;
  FaultTimes times_;
  PauseWatch pauses_;
  double collected_ = 0;  // pauses_ when Collect began.
};

}  // namespace ringfleet::integration

#endif  // RINGFLEET_TESTS_INTEGRATION_FAULT_WORLD_H_
