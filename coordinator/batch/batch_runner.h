// SPDX-License-Identifier: Apache-2.0
// Runs the lines of batches: keeps a number of them in flight, and commits
// their outcomes. A line in flight has no record of it in the store, so that a
// line whose outcome was not committed runs again, with its seed.
//
//   store -> next lines -> Answer (as over HTTP) -> outcome -> store
//
// A line that the fleet could not answer for a passing reason goes back to the
// next ones. Batches pause while the store is in trouble.
#ifndef RINGFLEET_COORDINATOR_BATCH_BATCH_RUNNER_H_
#define RINGFLEET_COORDINATOR_BATCH_BATCH_RUNNER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/batch/line_exchange.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/http/answer.h"
#include "coordinator/http/http_message.h"
#include "coordinator/http/http_metrics.h"
#include "coordinator/http/job_source.h"
#include "coordinator/http/work_pool.h"
#include "coordinator/store/batch_table.h"
#include "coordinator/store/store.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

struct BatchRunnerOptions {
  Store* store = nullptr;
  const ServedModel* model = nullptr;
  JobSource* jobs = nullptr;
  std::string served_name;
  uint32_t default_max_tokens = 4096;
  size_t window = 16;  // Lines in flight.
  // Until lines start again that the fleet could not take.
  absl::Duration pause = absl::Seconds(1);
  // Batches that ended this long ago are forgotten, and the oldest of them
  // while the store has more bytes than this.
  absl::Duration keep_time = absl::Hours(24 * 30);
  int64_t keep_bytes = int64_t{20} << 30;
};

// Figures of a batch that runs.
struct BatchPace {
  double lines_per_second = 0;  // 0: unknown.
  int64_t in_flight = 0;
};

// Thread-safe.
class BatchRunner {
 public:
  // `on_change` is called after each commit, on any thread.
  BatchRunner(const BatchRunnerOptions& options,
              std::function<void()> on_change);
  // Lines in flight end without an outcome. The store has been stopped before.
  ~BatchRunner();

  // Looks at the store's batches soon.
  void Wake();

  BatchPace PaceOf(const std::string& batch) const;

 private:
  using Clock = std::chrono::steady_clock;

  // Runs functions on the only thread of a pool.
  class Loop;
  // Starts jobs which are not listed: their batch is.
  class LineJobs;

  struct Batch {
    BatchRecord record;
    std::deque<LineRecord> next;
    int64_t last_place = -1, last_number = -1;  // Lines fetched so far.
    bool fetched_all = false;
    // By number, until the outcome is committed.
    std::map<int64_t, std::shared_ptr<LineExchange>> in_flight;
    bool left = false;  // Its lines in flight were told to end.
    int input = -1;
    bool input_lost = false;
    bool expired = false;  // Once, whatever the clock says later.
    // Commits of the last ones, for the pace.
    std::deque<Clock::time_point> commits;
    absl::Status problem;  // Logged last.
  };

  void Main();
  // Brings `batches_` to what the store has.
  absl::Status Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends batches that have nothing more to do.
  void EndBatches();
  // Does a part of it: the failures of some lines, or the end.
  void Finish(const std::string& id, const char* state, const char* code,
              const char* message);
  // Starts lines as long as there is room.
  void StartLines();
  // Returns a batch that has a line to start. Null: none.
  Batch* NextBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Fetch(Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(const std::string& id, int input, const LineRecord& line);
  // Takes the response of a line, on the thread of the answers.
  void OnResponse(const std::string& id, const LineRecord& line,
                  const std::string& request_id, const HttpResponse& response);
  void TryAgain(const std::string& id, const LineRecord& line);
  void Commit(const std::string& id, OutputRecord output,
              const BatchUsage& usage);
  // Ends the lines of a batch in flight.
  void Leave(Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const BatchRunnerOptions options_;
  const std::function<void()> on_change_;

  HttpMetrics metrics_;  // Nobody reads them.
  const std::unique_ptr<LineJobs> line_jobs_;
  AnswerHost host_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = true;
  Clock::time_point pause_until_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Batch> batches_ ABSL_GUARDED_BY(mu_);
  size_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  std::string last_started_ ABSL_GUARDED_BY(mu_);  // Batches take turns.
  absl::Status problem_ ABSL_GUARDED_BY(mu_);      // Of the store.

  // These end before the answers' host, the loop last.
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<WorkPool> pool_;
  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_BATCH_RUNNER_H_
