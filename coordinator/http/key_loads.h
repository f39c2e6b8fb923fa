// SPDX-License-Identifier: Apache-2.0
// The load that each API key has in flight, and its limits.
#ifndef RINGFLEET_COORDINATOR_HTTP_KEY_LOADS_H_
#define RINGFLEET_COORDINATOR_HTTP_KEY_LOADS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/http/api_error.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Limits of one key; 0: none.
struct KeyLimits {
  size_t jobs = 0;      // Choices that wait or run.
  uint64_t tokens = 0;  // Their prompts, and the most of their answers.
};

// Thread-safe. Requests without a key share one load, of the empty name.
class KeyLoads {
 public:
  // Counts a job. Returns a refusal with status 429 if a limit is reached; then
  // the job is not counted. A key without load may exceed its tokens by one
  // job.
  std::optional<ApiError> Add(const std::string& key, uint64_t tokens,
                              const KeyLimits& limits);
  // Ends a job that Add has counted.
  void Remove(const std::string& key, uint64_t tokens);

 private:
  struct Load {
    size_t jobs = 0;
    uint64_t tokens = 0;
  };

  Mutex mu_;
  std::map<std::string, Load> loads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_KEY_LOADS_H_
